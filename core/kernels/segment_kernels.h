// Declares the device's kernels for the means and maxima of sequences.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

struct SegmentArgs {
  const int32_t* cu_seqlens = nullptr;  // (batch + 1)
  int64_t batch = 0;
  int64_t rows = 0, columns = 0;  // of x; the rows may be more than the sequences have
};

// Elements are f32, bf16 or f16. Both kernels write all of their result.
struct SegmentKernels {
  // y: (batch, columns), x: (rows, columns). Sums run in float32, in a fixed order.
  void (*mean)(void* y, const void* x, DType type, const SegmentArgs& args);
  // dx: (rows, columns), dy: (batch, columns)
  void (*mean_grad)(void* dx, const void* dy, DType type, const SegmentArgs& args);
};

// Elements are f32, bf16 or f16. Both kernels write all of their results.
struct SegmentMaxKernels {
  // y: (batch, columns), x: (rows, columns). places: (batch, columns), the row of each maximum, the
  // first of equal ones; -1 for a sequence without rows, which gives 0. NaN counts as largest.
  void (*max)(void* y, int32_t* places, const void* x, DType type, const SegmentArgs& args);
  // dx: (rows, columns), dy: (batch, columns)
  void (*max_grad)(void* dx, const void* dy, const int32_t* places, DType type,
                   const SegmentArgs& args);
};

}  // namespace lathe
