// Cross-entropy with weights of rows and of classes, label smoothing and the focal factor.
//
// It divides by the sum of the weights. If that is 0, so is the loss, unlike PyTorch's NaN. Logits
// are float32, on the host also float64. Those of bfloat16 and float16 are converted, so the loss
// is float32. Weights are float32, not negative, and on the logits' device. The gradient flows to
// the logits alone. The twin composes the formula of plain ops: documentation and test oracle.
#pragma once

#include <cstdint>

#include "lathe/core/ops/losses.h"
#include "lathe/core/tensor.h"

namespace lathe {

struct WeightedCrossEntropyOptions {
  int64_t ignore_index = kIgnoreIndex;
  Tensor class_weights = {};   // w: [C]; undefined: all 1
  Tensor row_weights = {};     // s: [N]; undefined: all 1
  double label_smoothing = 0;  // e, from 0 to 1
  double focal_gamma = 0;      // g, at least 0
};

// With p_i = softmax(logits_i) and y_i = labels_i, returns the sum over rows i of
//
//   s_i ((1 - e) w_y (1 - p_iy)^g (-log p_iy) + e/C sum_c w_c (-log p_ic))
//
// divided by the sum of s_i w_y. logits: [N, C], labels: [N] int64 -> []. Ignored rows count
// nowhere.
//
// Without s and g it is PyTorch's cross_entropy with `weight` and `label_smoothing`. With s = w = 1
// and g = 0 it is the loss of Transformers' LabelSmoother. With e = 0 it is equation 5, the focal
// loss, of Lin et al., "Focal Loss for Dense Object Detection" (2017). w is their alpha.
//
// Throws for a label outside [0, C). Labels on a device are not checked: such a label makes the
// loss and its row's gradient NaN.
Tensor WeightedCrossEntropy(const Tensor& logits, const Tensor& labels,
                            const WeightedCrossEntropyOptions& options);
Tensor WeightedCrossEntropyComposed(const Tensor& logits, const Tensor& labels,
                                    const WeightedCrossEntropyOptions& options);

}  // namespace lathe
