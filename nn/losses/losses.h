// Losses with PyTorch's arguments, formulas and reductions, made of the ops of core/. The fused
// losses that the classifiers train with are in core/ops/losses.h.
//
//   Tensor loss = nn::CrossEntropy(logits, labels, {.weight = w, .label_smoothing = 0.1});
//   Tensor rows = nn::SmoothL1Loss(scores, targets, {.beta = 0.5, .reduction = Reduction::kNone});
//
// Numbers are float32, bfloat16 or float16, on the host also float64. Narrow numbers are converted:
// losses are computed and returned in float32, or float64. Gradients flow to all inputs but labels
// and weights. Both inputs of a loss must have one shape, and nothing is broadcast. Throws
// InvalidArgument for shapes, dtypes and devices that do not fit.
#pragma once

#include <cstdint>

#include "lathe/core/ops/losses.h"
#include "lathe/core/tensor.h"

namespace lathe {

// How a loss is made of the losses of elements or rows. kBatchMean, of KlDivLoss only, divides the
// sum by the number of rows.
enum class Reduction : uint8_t { kMean, kSum, kNone, kBatchMean };

}  // namespace lathe

namespace lathe::nn {

// |x - t|. input, target: one shape.
Tensor L1Loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

struct SmoothL1Options {
  double beta = 1;  // 0: the loss is L1Loss
  Reduction reduction = Reduction::kMean;
};
// (x - t)^2 / (2 beta) where |x - t| < beta, else |x - t| - beta / 2.
Tensor SmoothL1Loss(const Tensor& input, const Tensor& target, const SmoothL1Options& options = {});

// (x - t)^2.
Tensor MseLoss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

// -(t log x + (1 - t) log(1 - x)) of probabilities x in [0, 1], with logarithms of at least -100.
// Throws if x or t is outside of [0, 1]; on a GPU the loss is undefined then.
// The gradient's denominator x (1 - x) is at least 1e-12, as in PyTorch. The gradient flows to the
// input alone.
Tensor BceLoss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

struct BceWithLogitsOptions {
  Tensor weight = {};      // of the elements, of the input's shape; undefined: all 1
  Tensor pos_weight = {};  // of t = 1: [C] for inputs [..., C]; undefined: all 1
  Reduction reduction = Reduction::kMean;
};
// BceLoss of sigmoid(input), without overflow.
Tensor BceWithLogitsLoss(const Tensor& input, const Tensor& target,
                         const BceWithLogitsOptions& options = {});

struct KlDivOptions {
  bool log_target = false;  // the target holds logarithms, too
  Reduction reduction = Reduction::kMean;
};
// t (log t - x), with 0 for t = 0. `input` holds logarithms of probabilities, and comes first, as
// in PyTorch. kMean divides by the number of elements; the divergence is kBatchMean.
Tensor KlDivLoss(const Tensor& input, const Tensor& target, const KlDivOptions& options = {});

struct ClassOptions {
  Tensor weight = {};  // w of the classes: [C]; undefined: all 1
  int64_t ignore_index = kIgnoreIndex;
  double label_smoothing = 0;  // of CrossEntropy, from 0 to 1
  Reduction reduction = Reduction::kMean;
};
// -w_t x_t. input: [N, C], logarithms of probabilities; target: [N] int64 -> [] or [N]. The mean
// divides by the sum of w_t. Rows whose label is ignored count nowhere; if all are, the mean is
// NaN. Throws for a label outside [0, C). Labels on the input's device are not checked, and nothing
// is read back: such a label makes its row's loss NaN, and with kMean all gradients.
Tensor NllLoss(const Tensor& input, const Tensor& target, const ClassOptions& options = {});

// NllLoss of log_softmax(input). With label smoothing e a row's loss is
//   (1 - e) w_t (-log p_t) + e / C sum_c w_c (-log p_c)
// and the mean still divides by the sum of w_t.
Tensor CrossEntropy(const Tensor& input, const Tensor& target, const ClassOptions& options = {});

struct CosineEmbeddingOptions {
  double margin = 0;
  Reduction reduction = Reduction::kMean;
};
// 1 - cos(a, b) where y is 1, and max(0, cos(a, b) - margin) where y is -1. a, b: [N, D]; y: [N] of
// any dtype -> [] or [N]. Throws for other y, which lies on the host or on the inputs' device;
// there it is not checked.
Tensor CosineEmbeddingLoss(const Tensor& a, const Tensor& b, const Tensor& y,
                           const CosineEmbeddingOptions& options = {});

struct TripletMarginOptions {
  double margin = 1;
  double p = 2;  // of the norm: 1 or 2
  double eps = 1e-6;
  bool swap = false;  // uses the smaller of the negative's distances from anchor and positive
  Reduction reduction = Reduction::kMean;
};
// max(0, d(anchor, positive) - d(anchor, negative) + margin) with d(a, b) = |a - b + eps|_p. All
// are [N, D] -> [] or [N].
Tensor TripletMarginLoss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                         const TripletMarginOptions& options = {});

// Returns a b / (max(|a|, eps) max(|b|, eps)) of each row, as PyTorch's cosine_similarity does
// along dimension 1. a, b: [N, D] -> [N].
Tensor CosineSimilarity(const Tensor& a, const Tensor& b, double eps = 1e-8);

}  // namespace lathe::nn
