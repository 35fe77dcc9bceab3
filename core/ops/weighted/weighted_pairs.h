// The losses of losses.h for scores and for several labels at once, with weights of rows.
//
// They divide by the sum of the weights. If that is 0, so is the loss. Numbers are float32, on the
// host also float64. Those of bfloat16 and float16 are converted, so the loss is float32. Weights
// are float32, not negative, and on the same device. The gradient flows to the first tensor alone.
// Each has a twin that composes its formula of plain ops: documentation and test oracle.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

struct WeightedBceOptions {
  Tensor positive_weights = {};  // w: [C]; undefined: all 1
  Tensor row_weights = {};       // s: [N]; undefined: all 1
  double focal_gamma = 0;        // g, at least 0
  Tensor num_rows = {};          // as in losses.h
};

// With q_ic = sigmoid(logits_ic), returns the sum over rows i and columns c of
//
//   s_i (w_c t_ic (1 - q_ic)^g (-log q_ic) + (1 - t_ic) q_ic^g (-log (1 - q_ic)))
//
// divided by C times the sum of s_i. Both have shape [N, C], and t is in [0, 1]. Without s and g it
// is PyTorch's BCEWithLogitsLoss with `pos_weight`.
Tensor WeightedBceWithLogits(const Tensor& logits, const Tensor& targets,
                             const WeightedBceOptions& options);
Tensor WeightedBceWithLogitsComposed(const Tensor& logits, const Tensor& targets,
                                     const WeightedBceOptions& options);

// Returns the sum over rows i and columns c of s_i (pred_ic - target_ic)^2, divided by C times the
// sum of s_i. Both have one shape [N, ...] with C elements in a row. row_weights: [N].
Tensor WeightedMse(const Tensor& pred, const Tensor& target, const Tensor& row_weights,
                   const Tensor& num_rows = {});
Tensor WeightedMseComposed(const Tensor& pred, const Tensor& target, const Tensor& row_weights);

}  // namespace lathe
