// Declares the device's kernels for the losses with weights.
#pragma once

#include <cstdint>

#include "lathe/core/kernels/losses_kernels.h"

namespace lathe {

// What WeightedCrossEntropyOptions says, for `rows` rows of `classes` logits. Weights may be null,
// which stands for ones.
struct WeightedRows {
  int64_t rows, classes, ignore_index;
  const float* class_weights;
  const float* row_weights;
  double label_smoothing, focal_gamma;
};
// The pairs of a loss: n, in rows of `columns`. Weights and num_rows may be null.
struct WeightedPairs {
  int64_t n, columns;
  const int32_t* num_rows;        // on the device: how many rows count
  const float* row_weights;       // (n / columns)
  const float* positive_weights;  // (columns)
  double focal_gamma;
};
// Losses in float32. loss, dloss: one element, on the device. Sums are double, in a fixed order.
struct WeightedLossKernels {
  // logits: (rows, classes), labels: (rows). saved: (2 rows + 1), for the gradient. A label outside
  // [0, classes) gives NaN.
  void (*cross_entropy)(float* loss, float* saved, const float* logits, const int64_t* labels,
                        const WeightedRows& weights);
  // dlogits: (rows, classes); 0 for ignored rows, NaN for rows whose label is out of range.
  void (*cross_entropy_grad)(float* dlogits, const float* dloss, const float* saved,
                             const float* logits, const int64_t* labels,
                             const WeightedRows& weights);
  // kind: kMse or kBceWithLogits. a: predictions or logits, b: targets; (n). divisor: one element,
  // for the gradient.
  void (*pairs)(PairLoss kind, float* loss, float* divisor, const float* a, const float* b,
                const WeightedPairs& weights);
  // da: (n); 0 for pairs that don't count.
  void (*pairs_grad)(PairLoss kind, float* da, const float* dloss, const float* divisor,
                     const float* a, const float* b, const WeightedPairs& weights);
};

}  // namespace lathe
