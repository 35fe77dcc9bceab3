// Declares the device's kernels for the losses.
#pragma once

#include <cstdint>

namespace lathe {

// Losses in float32. loss, dloss: one element, on the device. Sums are double, in a fixed order.
// kNegativeProduct is -a b.
enum class PairLoss { kMse, kBceWithLogits, kNegativeProduct };
// Labels that count nowhere: those equal to `ignore_index` or, if that is the least number, all
// negative ones.
constexpr bool IsIgnored(int64_t label, int64_t ignore_index) {
  return label == ignore_index || (ignore_index == INT64_MIN && label < 0);
}
// The pairs of a loss that count: those of the first *rows rows of `columns` pairs; all n pairs if
// rows is null.
struct PairCount {
  int64_t n, columns;
  const int32_t* rows;  // on the device
  double denominator;   // divides the sum; 0: the number of pairs that count
};
struct LossKernels {
  // logits: (rows, classes), labels: (rows). saved: (2 rows + 1), for the gradient. A `denominator`
  // of 0 means the number of labels that are not ignored, but at least 1 if the least number is
  // `ignore_index`. A label outside [0, classes) gives NaN.
  void (*cross_entropy)(float* loss, float* saved, const float* logits, const int64_t* labels,
                        int64_t rows, int64_t classes, int64_t ignore_index, double denominator);
  // dlogits: (rows, classes); 0 for ignored rows, NaN for rows whose label is out of range.
  void (*cross_entropy_grad)(float* dlogits, const float* dloss, const float* saved,
                             const float* logits, const int64_t* labels, int64_t rows,
                             int64_t classes, int64_t ignore_index);
  // a: predictions or logits, b: targets; (n).
  void (*pairs)(PairLoss kind, float* loss, const float* a, const float* b, const PairCount& count);
  // out: (n), the gradient of a if `first`, else of b; 0 for pairs that don't count.
  void (*pairs_grad)(PairLoss kind, bool first, float* out, const float* dloss, const float* a,
                     const float* b, const PairCount& count);
};

}  // namespace lathe
