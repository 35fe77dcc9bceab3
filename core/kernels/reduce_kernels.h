// Declares the device's kernels for sums and softmax.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/kernels/walk_dims.h"

namespace lathe {

// Sums are formed in a fixed order. Elements are f32, bf16 or f16.
struct ReduceKernels {
  // Sums x (operand a of `dims`) over the dimensions along which y (operand b) has stride 0. Writes
  // all of y.
  void (*sum)(void* y, const void* x, DType type, const WalkDims& dims);
  // Over the last dimension. x, y: (rows, n).
  void (*softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
  void (*log_softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
};

}  // namespace lathe
