// Losses with weights, and their gradients. WeightedLossKernels in
// core/kernels/weighted_losses_kernels.h describes them, and core/ops/weighted/ their formulas.
#include "lathe/core/cuda/loss_sums.h"
#include "lathe/core/cuda/rows.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/weighted_losses_kernels.h"

namespace lathe::cuda {
namespace {

__device__ inline float At(const float* weights, int64_t i) {
  return weights == nullptr ? 1 : weights[i];
}

// Runs as one block. Computes loss = sum / divisor, where the divisor is the count, or 1 if that
// is 0.
__global__ void FinishWeightedLoss(float* loss, float* divisor_out, const Partial* partials,
                                   int64_t n) {
  __shared__ double scratch[32];
  double sum = 0, count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kBlock) {
    sum += partials[i].sum;
    count += partials[i].count;
  }
  sum = BlockSum(sum, scratch);
  count = BlockSum(count, scratch);
  if (threadIdx.x != 0) return;
  const double divisor = count > 0 ? count : 1;
  *loss = static_cast<float>(sum / divisor);
  *divisor_out = static_cast<float>(divisor);
}

// --- cross-entropy: a row is a sample's logits ---

template <typename Group>
__global__ void WeightedCrossEntropyRows(Partial* partials, float* saved, const float* logits,
                                         const int64_t* labels, WeightedRows w) {
  const float e = static_cast<float>(w.label_smoothing), gamma = static_cast<float>(w.focal_gamma);
  double sum = 0, count = 0;  // of the group's rows, in its first thread
  for (int64_t r = Group::First(); r < w.rows; r += Group::Count()) {
    const int64_t label = labels[r];
    if (IsIgnored(label, w.ignore_index)) continue;
    const float* row = logits + r * w.classes;
    float max = -INFINITY;
    for (int64_t c = Group::Rank(); c < w.classes; c += Group::kThreads) {
      max = row[c] <= max ? max : row[c];  // keeps a NaN
    }
    max = Group::Max(max);
    float exps = 0;
    for (int64_t c = Group::Rank(); c < w.classes; c += Group::kThreads) exps += expf(row[c] - max);
    exps = Group::Sum(exps);
    const float log_sum = logf(exps);
    float smooth = 0;  // sum_c w_c log p_c
    if (e > 0) {
      for (int64_t c = Group::Rank(); c < w.classes; c += Group::kThreads)
        smooth += At(w.class_weights, c) * (row[c] - max - log_sum);
      smooth = Group::Sum(smooth);
    }
    if (Group::Rank() != 0) continue;
    saved[2 * r] = max;
    saved[2 * r + 1] = log_sum;
    const float of_row = At(w.row_weights, r);
    if (label < 0 || label >= w.classes) {
      sum += NaN();
      count += of_row;
      continue;
    }
    const double log_p = (static_cast<double>(row[label]) - max) - log_sum;
    const float focal = gamma > 0 ? powf(-expm1f(static_cast<float>(log_p)), gamma) : 1;
    const double weight = static_cast<double>(of_row) * At(w.class_weights, label);
    sum -= weight * (1 - e) * focal * log_p;
    if (e > 0) sum -= static_cast<double>(of_row) * e / static_cast<double>(w.classes) * smooth;
    count += weight;
  }
  StorePartial(partials, sum, count);
}

template <typename Group>
__global__ void WeightedCrossEntropyGradRows(float* dlogits, const float* dloss, const float* saved,
                                             const float* logits, const int64_t* labels,
                                             WeightedRows w) {
  const float scale = *dloss / saved[2 * w.rows];
  const float e = static_cast<float>(w.label_smoothing), gamma = static_cast<float>(w.focal_gamma);
  const float smooth = e / static_cast<float>(w.classes);
  float weight_sum = 0;  // of all classes
  if (e > 0) {
    for (int64_t c = Group::Rank(); c < w.classes; c += Group::kThreads)
      weight_sum += At(w.class_weights, c);
    weight_sum = Group::Sum(weight_sum);
  }
  for (int64_t r = Group::First(); r < w.rows; r += Group::Count()) {
    const int64_t label = labels[r];
    const bool ignored = IsIgnored(label, w.ignore_index);
    const bool valid = label >= 0 && label < w.classes, counts = valid && !ignored;
    const float max = ignored ? 0 : saved[2 * r], log_sum = ignored ? 0 : saved[2 * r + 1];
    float hard = counts ? (1 - e) * At(w.class_weights, label) : 0;
    if (gamma > 0 && counts) {
      const float log_p = logits[r * w.classes + label] - max - log_sum, q = -expm1f(log_p);
      hard *= powf(q, gamma) * (1 + gamma * expf(log_p) * (q > 0 ? -log_p / q : 1));
    }
    const float of_row = scale * At(w.row_weights, r);
    for (int64_t c = Group::Rank(); c < w.classes; c += Group::kThreads) {
      const int64_t i = r * w.classes + c;
      const float p = expf(logits[i] - max - log_sum);
      float gradient = hard * (p - (c == label ? 1 : 0));
      if (e > 0) gradient += smooth * (weight_sum * p - At(w.class_weights, c));
      dlogits[i] = ignored ? 0 : valid ? of_row * gradient : NaN();
    }
  }
}

void CrossEntropy(float* loss, float* saved, const float* logits, const int64_t* labels,
                  const WeightedRows& weights) {
  Partial* partials = Partials();
  WithRowGroup(weights.classes, [&](auto group) {
    using Group = decltype(group);
    const dim3 grid = GridForRows<Group>(weights.rows, kMaxPartials);
    LATHE_LAUNCH(WeightedCrossEntropyRows<Group>, grid, kBlock, 0, partials, saved, logits, labels,
                 weights);
    LATHE_LAUNCH(FinishWeightedLoss, dim3(1), kBlock, 0, loss, saved + 2 * weights.rows, partials,
                 grid.x);
  });
}

void CrossEntropyGrad(float* dlogits, const float* dloss, const float* saved, const float* logits,
                      const int64_t* labels, const WeightedRows& weights) {
  if (weights.rows == 0 || weights.classes == 0) return;
  WithRowGroup(weights.classes, [&](auto group) {
    using Group = decltype(group);
    LATHE_LAUNCH(WeightedCrossEntropyGradRows<Group>, GridForRows<Group>(weights.rows), kBlock, 0,
                 dlogits, dloss, saved, logits, labels, weights);
  });
}

// --- losses of pairs ---

// Each struct has the loss of a prediction and a target, and its derivative by the prediction. `w`
// is the weight of a positive target.
struct Mse {
  static __device__ double Value(float p, float t, float, float) {
    const double difference = static_cast<double>(p) - t;
    return difference * difference;
  }
  static __device__ float Grad(float p, float t, float, float) { return 2 * (p - t); }
};
struct Bce {
  static __device__ double Value(float x, float t, float w, float gamma) {
    const float softplus = log1pf(expf(-fabsf(x)));
    const float p = (x < 0 ? -x : 0) + softplus, q = (x < 0 ? 0 : x) + softplus;
    const float hard_p = gamma > 0 ? expf(-gamma * q) : 1,
                hard_q = gamma > 0 ? expf(-gamma * p) : 1;
    return static_cast<double>(w) * t * hard_p * p + (1 - static_cast<double>(t)) * hard_q * q;
  }
  static __device__ float Grad(float x, float t, float w, float gamma) {
    const float s = 1 / (1 + expf(-x)), rest = 1 / (1 + expf(x));
    if (!(gamma > 0)) return (1 - t) * s - w * t * rest;
    const float softplus = log1pf(expf(-fabsf(x)));
    const float p = (x < 0 ? -x : 0) + softplus, q = (x < 0 ? 0 : x) + softplus;
    return (1 - t) * expf(-gamma * p) * (s + gamma * rest * q) -
           w * t * expf(-gamma * q) * (rest + gamma * s * p);
  }
};

template <typename Body>
void WithLoss(PairLoss loss, Body body) {
  if (loss == PairLoss::kMse) return body(Mse{});
  body(Bce{});
}

__device__ inline int64_t NumPairs(const WeightedPairs& w) {
  if (w.num_rows == nullptr) return w.n;
  const int64_t there = *w.num_rows * w.columns;
  return there < 0 ? 0 : there < w.n ? there : w.n;
}

template <typename Loss>
__global__ void WeightedPairSums(Partial* partials, const float* a, const float* b,
                                 WeightedPairs w) {
  const int64_t n = NumPairs(w);
  const float gamma = static_cast<float>(w.focal_gamma);
  double sum = 0, count = 0;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const double of_row = At(w.row_weights, i / w.columns);
    sum += of_row * Loss::Value(a[i], b[i], At(w.positive_weights, i % w.columns), gamma);
    count += of_row;
  }
  StorePartial(partials, sum, count);
}

template <typename Loss>
__global__ void WeightedPairGrad(float* da, const float* dloss, const float* divisor,
                                 const float* a, const float* b, WeightedPairs w) {
  const int64_t n = NumPairs(w);
  const float gamma = static_cast<float>(w.focal_gamma), scale = *dloss / *divisor;
  for (int64_t i = GlobalThread(); i < w.n; i += NumThreads()) {
    const float positive = At(w.positive_weights, i % w.columns);
    const float of_row = scale * At(w.row_weights, i / w.columns);
    da[i] = i >= n ? 0 : of_row * Loss::Grad(a[i], b[i], positive, gamma);
  }
}

void Pairs(PairLoss kind, float* loss, float* divisor, const float* a, const float* b,
           const WeightedPairs& weights) {
  WithLoss(kind, [&](auto tag) {
    using Loss = decltype(tag);
    Partial* partials = Partials();
    dim3 grid = GridFor(weights.n);
    if (grid.x > kMaxPartials) grid.x = kMaxPartials;
    LATHE_LAUNCH(WeightedPairSums<Loss>, grid, kBlock, 0, partials, a, b, weights);
    LATHE_LAUNCH(FinishWeightedLoss, dim3(1), kBlock, 0, loss, divisor, partials, grid.x);
  });
}

void PairsGrad(PairLoss kind, float* da, const float* dloss, const float* divisor, const float* a,
               const float* b, const WeightedPairs& weights) {
  if (weights.n == 0) return;
  WithLoss(kind, [&](auto tag) {
    using Loss = decltype(tag);
    LATHE_LAUNCH(WeightedPairGrad<Loss>, GridFor(weights.n), kBlock, 0, da, dloss, divisor, a, b,
                 weights);
  });
}

const WeightedLossKernels table = {CrossEntropy, CrossEntropyGrad, Pairs, PairsGrad};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
