// Losses with fused forward and backward passes, in float32, on the host also in float64. Inputs of
// bfloat16 and float16 are converted, so the loss is float32 and the gradients have the inputs'
// dtype. Each loss has a twin that composes its formula of plain ops: documentation and test
// oracle.
//
// Each loss is a mean. A `denominator` other than 0 replaces the mean's own count. So the losses of
// several micro-batches can add up to the mean over all of them:
//
//   CrossEntropy(logits, labels, kIgnoreIndex, labels_in_window);
//
// `num_rows` is one i32 on the inputs' device: only the first `num_rows` rows count. If it is
// undefined, all rows count. The rows behind may hold any finite numbers and get a gradient of 0.
#pragma once

#include <cstdint>
#include <limits>

#include "lathe/core/tensor.h"

namespace lathe {

constexpr int64_t kIgnoreIndex = -100;  // PyTorch's default
// As an ignore_index: all negative labels are ignored, and if all labels are, the mean is 0.
constexpr int64_t kIgnoreNegative = std::numeric_limits<int64_t>::min();

// Returns -1/n sum_i log softmax(logits_i)[labels_i] over the n labels that are not ignored.
// logits: [N, C], labels: [N] int64 -> []. If all labels are ignored, the mean is NaN and the
// gradient 0, as in PyTorch; with a denominator the loss is 0. Throws for a label outside [0, C).
// Labels on a device are not checked: such a label makes the loss and its row's gradient NaN.
Tensor CrossEntropy(const Tensor& logits, const Tensor& labels, int64_t ignore_index = kIgnoreIndex,
                    double denominator = 0);
// Throws for a label as CrossEntropy does. Returns the number of labels that are not ignored.
// labels: int64, on the host.
int64_t CheckLabels(const Tensor& labels, int64_t classes, int64_t ignore_index = kIgnoreIndex);
Tensor CrossEntropyComposed(const Tensor& logits, const Tensor& labels,
                            int64_t ignore_index = kIgnoreIndex, double denominator = 0);

// Returns -1/N sum_i sum_c t_ic log softmax(z_i)_c, the cross-entropy with weights t_ic of the
// classes. Both have shape [N, C].
Tensor SoftCrossEntropy(const Tensor& logits, const Tensor& targets, double denominator = 0,
                        const Tensor& num_rows = {});
Tensor SoftCrossEntropyComposed(const Tensor& logits, const Tensor& targets,
                                double denominator = 0);

// Returns 1/n sum (pred - target)^2 over all n elements. Both have one shape.
Tensor MseLoss(const Tensor& pred, const Tensor& target, double denominator = 0,
               const Tensor& num_rows = {});
Tensor MseLossComposed(const Tensor& pred, const Tensor& target, double denominator = 0);

// Returns 1/n sum -(t log s(x) + (1 - t) log(1 - s(x))) with s = sigmoid, over all n elements. Both
// have one shape, and t is in [0, 1].
Tensor BceWithLogitsLoss(const Tensor& logits, const Tensor& targets, double denominator = 0,
                         const Tensor& num_rows = {});
Tensor BceWithLogitsLossComposed(const Tensor& logits, const Tensor& targets,
                                 double denominator = 0);

}  // namespace lathe
