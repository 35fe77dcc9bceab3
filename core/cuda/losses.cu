// Losses and their gradients. LossKernels in core/kernels/losses_kernels.h describes them.
#include <limits>

#include "lathe/core/cuda/loss_sums.h"
#include "lathe/core/cuda/rows.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/losses_kernels.h"

namespace lathe::cuda {
namespace {

// Runs as one block. Computes loss = sum / divisor. The divisor is `denominator` or, if that is 0,
// the count, but not less than `least`. divisor_out may be null.
__global__ void FinishLoss(float* loss, float* divisor_out, const Partial* partials, int64_t n,
                           double denominator, double least) {
  __shared__ double scratch[32];
  double sum = 0, count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kBlock) {
    sum += partials[i].sum;
    count += partials[i].count;
  }
  sum = BlockSum(sum, scratch);
  count = BlockSum(count, scratch);
  if (threadIdx.x != 0) return;
  const double divisor = denominator != 0 ? denominator : count < least ? least : count;
  *loss = static_cast<float>(sum / divisor);
  if (divisor_out != nullptr) *divisor_out = static_cast<float>(divisor);
}

// --- cross-entropy: a row is a sample's logits ---

template <typename Group>
__global__ void CrossEntropyRows(Partial* partials, float* saved, const float* logits,
                                 const int64_t* labels, int64_t rows, int64_t classes,
                                 int64_t ignore_index) {
  double sum = 0, count = 0;  // of the group's rows, in its first thread
  for (int64_t r = Group::First(); r < rows; r += Group::Count()) {
    const int64_t label = labels[r];
    if (IsIgnored(label, ignore_index)) continue;
    const float* row = logits + r * classes;
    float max = -INFINITY;
    for (int64_t c = Group::Rank(); c < classes; c += Group::kThreads) {
      max = row[c] <= max ? max : row[c];  // keeps a NaN
    }
    max = Group::Max(max);
    float exps = 0;
    for (int64_t c = Group::Rank(); c < classes; c += Group::kThreads) exps += expf(row[c] - max);
    exps = Group::Sum(exps);
    if (Group::Rank() != 0) continue;
    const float log_sum = logf(exps);
    saved[2 * r] = max;
    saved[2 * r + 1] = log_sum;
    const bool valid = label >= 0 && label < classes;
    sum += valid ? (static_cast<double>(max) - row[label]) + log_sum : NaN();
    count += 1;
  }
  StorePartial(partials, sum, count);
}

template <typename Group>
__global__ void CrossEntropyGradRows(float* dlogits, const float* dloss, const float* saved,
                                     const float* logits, const int64_t* labels, int64_t rows,
                                     int64_t classes, int64_t ignore_index) {
  const float scale = *dloss / saved[2 * rows];
  for (int64_t r = Group::First(); r < rows; r += Group::Count()) {
    const int64_t label = labels[r];
    const bool ignored = IsIgnored(label, ignore_index), valid = label >= 0 && label < classes;
    const float max = ignored ? 0 : saved[2 * r], log_sum = ignored ? 0 : saved[2 * r + 1];
    for (int64_t c = Group::Rank(); c < classes; c += Group::kThreads) {
      const int64_t i = r * classes + c;
      const float probability = expf(logits[i] - max - log_sum);
      const float gradient = scale * probability - (c == label ? scale : 0);
      dlogits[i] = ignored ? 0 : valid ? gradient : NaN();
    }
  }
}

void CrossEntropy(float* loss, float* saved, const float* logits, const int64_t* labels,
                  int64_t rows, int64_t classes, int64_t ignore_index, double denominator) {
  Partial* partials = Partials();
  WithRowGroup(classes, [&](auto group) {
    using Group = decltype(group);
    const dim3 grid = GridForRows<Group>(rows, kMaxPartials);
    LATHE_LAUNCH(CrossEntropyRows<Group>, grid, kBlock, 0, partials, saved, logits, labels, rows,
                 classes, ignore_index);
    LATHE_LAUNCH(FinishLoss, dim3(1), kBlock, 0, loss, saved + 2 * rows, partials, grid.x,
                 denominator, IsIgnored(-1, ignore_index) ? 1.0 : 0.0);
  });
}

void CrossEntropyGrad(float* dlogits, const float* dloss, const float* saved, const float* logits,
                      const int64_t* labels, int64_t rows, int64_t classes, int64_t ignore_index) {
  if (rows == 0 || classes == 0) return;
  WithRowGroup(classes, [&](auto group) {
    using Group = decltype(group);
    LATHE_LAUNCH(CrossEntropyGradRows<Group>, GridForRows<Group>(rows), kBlock, 0, dlogits, dloss,
                 saved, logits, labels, rows, classes, ignore_index);
  });
}

// --- losses of pairs ---

// Each struct has the loss of a prediction and a target, and its derivatives with respect to both.
struct Mse {
  static __device__ double Value(float p, float t) {
    const double difference = static_cast<double>(p) - t;
    return difference * difference;
  }
  static __device__ float ByFirst(float p, float t) { return 2 * (p - t); }
  static __device__ float BySecond(float p, float t) { return -2 * (p - t); }
};
struct BceWithLogits {
  static __device__ double Value(float x, float t) {
    return (x < 0 ? 0 : x) - static_cast<double>(x) * t + log1pf(expf(-fabsf(x)));
  }
  static __device__ float ByFirst(float x, float t) { return 1 / (1 + expf(-x)) - t; }
  static __device__ float BySecond(float x, float) { return -x; }
};

struct NegativeProduct {
  static __device__ double Value(float a, float b) { return -static_cast<double>(a) * b; }
  static __device__ float ByFirst(float, float b) { return -b; }
  static __device__ float BySecond(float a, float) { return -a; }
};

template <typename Body>
void WithLoss(PairLoss loss, Body body) {
  if (loss == PairLoss::kMse) return body(Mse{});
  if (loss == PairLoss::kNegativeProduct) return body(NegativeProduct{});
  body(BceWithLogits{});
}

__device__ inline int64_t NumPairs(const PairCount& count) {
  if (count.rows == nullptr) return count.n;
  const int64_t there = *count.rows * count.columns;
  return there < 0 ? 0 : there < count.n ? there : count.n;
}

template <typename Loss>
__global__ void PairSums(Partial* partials, const float* a, const float* b, PairCount count) {
  const int64_t n = NumPairs(count);
  double sum = 0, pairs = 0;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    sum += Loss::Value(a[i], b[i]);
    pairs += 1;
  }
  StorePartial(partials, sum, pairs);
}

template <typename Loss, bool kFirst>
__global__ void PairGrad(float* out, const float* dloss, const float* a, const float* b,
                         PairCount count) {
  const int64_t n = NumPairs(count);
  const double divisor = count.denominator != 0 ? count.denominator : static_cast<double>(n);
  const float scale = static_cast<float>(*dloss / divisor);
  for (int64_t i = GlobalThread(); i < count.n; i += NumThreads()) {
    out[i] = i >= n ? 0 : scale * (kFirst ? Loss::ByFirst(a[i], b[i]) : Loss::BySecond(a[i], b[i]));
  }
}

void Pairs(PairLoss kind, float* loss, const float* a, const float* b, const PairCount& count) {
  WithLoss(kind, [&](auto tag) {
    using Loss = decltype(tag);
    Partial* partials = Partials();
    dim3 grid = GridFor(count.n);
    if (grid.x > kMaxPartials) grid.x = kMaxPartials;
    LATHE_LAUNCH(PairSums<Loss>, grid, kBlock, 0, partials, a, b, count);
    LATHE_LAUNCH(FinishLoss, dim3(1), kBlock, 0, loss, nullptr, partials, grid.x, count.denominator,
                 0.0);
  });
}

void PairsGrad(PairLoss kind, bool first, float* out, const float* dloss, const float* a,
               const float* b, const PairCount& count) {
  if (count.n == 0) return;
  WithLoss(kind, [&](auto tag) {
    using Loss = decltype(tag);
    if (first) {
      LATHE_LAUNCH((PairGrad<Loss, true>), GridFor(count.n), kBlock, 0, out, dloss, a, b, count);
    } else {
      LATHE_LAUNCH((PairGrad<Loss, false>), GridFor(count.n), kBlock, 0, out, dloss, a, b, count);
    }
  });
}

const LossKernels table = {CrossEntropy, CrossEntropyGrad, Pairs, PairsGrad};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
