// The check of packed rows that ops over whole sequences share.
#pragma once

#include <algorithm>
#include <span>

#include "lathe/core/ops/dispatch.h"

namespace lathe {

// Throws `[op] ...` unless x is [T, C] and cu_seqlens fits it, as far as the host knows it.
inline void CheckSegments(const char* op, const Tensor& x, const Tensor& cu_seqlens) {
  Check(x.ndim() == 2, op, "x must have shape [T, C] but has ", x.shape());
  Check(cu_seqlens.dtype() == DType::kI32 && cu_seqlens.ndim() == 1 && cu_seqlens.numel() >= 1, op,
        "cu_seqlens must be int32 of shape [B + 1] but is ", ToString(cu_seqlens.dtype()),
        " of shape ", cu_seqlens.shape());
  CheckSameDevice(op, x.device(), {cu_seqlens});
  if (!x.device().is_cpu()) return;
  const std::span<const int32_t> cu = cu_seqlens.values<int32_t>();
  Check(cu[0] == 0, op, "cu_seqlens must start with 0 but starts with ", cu[0]);
  Check(std::ranges::is_sorted(cu), op, "cu_seqlens must not decrease");
  Check(cu.back() <= x.dim(0), op, "the sequences have ", cu.back(), " rows but x has shape ",
        x.shape());
}

}  // namespace lathe
