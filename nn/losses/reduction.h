// What the losses share: checks, precision and reductions. For their sources.
#pragma once

#include "lathe/core/ops/reduce.h"
#include "lathe/nn/losses/losses.h"

namespace lathe::nn::losses {

// Throws unless a and b are numbers of one shape, dtype and device.
inline void CheckPair(const char* op, const Tensor& a, const Tensor& b) {
  Check(a.defined() && b.defined(), op, "expected two tensors but got an undefined one");
  Check(a.shape() == b.shape(), op, "expected inputs of one shape but got ", a.shape(), " and ",
        b.shape());
  // The losses compute narrow numbers in float32.
  const auto is_wide = [](const Tensor& x) { return x.dtype() == DType::kF64; };
  Check(IsFloating(a.dtype()) && IsFloating(b.dtype()) && is_wide(a) == is_wide(b), op,
        "expected inputs of one floating dtype but got ", ToString(a.dtype()), " and ",
        ToString(b.dtype()));
  Check(a.device() == b.device(), op, "expected inputs on one device but got ",
        ToString(a.device()), " and ", ToString(b.device()));
}

// Throws for the reduction that only KlDivLoss has.
inline void CheckReduction(const char* op, Reduction reduction) {
  Check(reduction != Reduction::kBatchMean, op, "there is no kBatchMean; use kMean, kSum or kNone");
}

// Reduces the losses of elements or rows.
inline Tensor Reduced(const char* op, const Tensor& losses, Reduction reduction) {
  CheckReduction(op, reduction);
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kSum ? Sum(losses) : Mean(losses);
}

}  // namespace lathe::nn::losses
