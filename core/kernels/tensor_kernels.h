// Declares the device's kernels that tensors themselves need.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Operations that tensors themselves need. All pointers are the device's; n counts elements.
struct TensorKernels {
  void (*fill)(void* to, DType type, double value, int64_t n);
  // Rounds to nearest, ties to even, as the host does.
  void (*convert)(void* to, DType to_type, const void* from, DType from_type, int64_t n);
  // to += x; f32, bf16 or f16.
  void (*add)(void* to, const void* x, DType type, int64_t n);
  // to *= factor; f32, bf16 or f16.
  void (*scale)(void* to, DType type, double factor, int64_t n);
  // Does the same with a factor that lies on the device.
  void (*scale_by)(void* to, DType type, const float* factor, int64_t n);
  // Adds row (n) to each row of to: (rows, n) with row stride ld; f32, bf16 or f16.
  void (*add_row)(void* to, DType type, const float* row, int64_t rows, int64_t n, int64_t ld);
};

}  // namespace lathe
