// Losses: fused forward and backward passes in float32 or float64 (devices: float32), each with its
// formula composed of plain ops beside it (documentation and test oracle).
//
// Each is a mean. `denominator` other than 0 replaces the mean's own count, so that the losses of
// several micro-batches add up to the mean over all of them:
//
//   CrossEntropy(logits, labels, kIgnoreIndex, labels_in_window);
//
// `num_rows`, one i32 where the others are: only so many rows count, the first ones. Undefined: all
// do. What comes behind may be any finite numbers and gets a gradient of 0.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

constexpr int64_t kIgnoreIndex = -100;  // PyTorch's default

// -1/n sum_i log softmax(logits_i)[labels_i] over the n labels that are not ignored.
// logits: [N, C], labels: [N] int64 -> []. With no label left the mean is NaN and the gradient 0,
// as in PyTorch; with a denominator the loss is 0. Throws for a label outside [0, C); on a device,
// where nobody looks, the loss and the row's gradient are NaN instead.
Tensor CrossEntropy(const Tensor& logits, const Tensor& labels, int64_t ignore_index = kIgnoreIndex,
                    double denominator = 0);
// Throws as CrossEntropy does; returns how many labels are not ignored. labels: int64, on the host.
int64_t CheckLabels(const Tensor& labels, int64_t classes, int64_t ignore_index = kIgnoreIndex);
Tensor CrossEntropyComposed(const Tensor& logits, const Tensor& labels,
                            int64_t ignore_index = kIgnoreIndex, double denominator = 0);

// 1/n sum (pred - target)^2 over all n elements; both of one shape.
Tensor MseLoss(const Tensor& pred, const Tensor& target, double denominator = 0,
               const Tensor& num_rows = {});
Tensor MseLossComposed(const Tensor& pred, const Tensor& target, double denominator = 0);

// 1/n sum -(t log s(x) + (1 - t) log(1 - s(x))) with s = sigmoid, over all n elements; both of one
// shape, t in [0, 1].
Tensor BceWithLogitsLoss(const Tensor& logits, const Tensor& targets, double denominator = 0,
                         const Tensor& num_rows = {});
Tensor BceWithLogitsLossComposed(const Tensor& logits, const Tensor& targets,
                                 double denominator = 0);

}  // namespace lathe
