// Declares the device's kernels for variances.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/kernels/walk_dims.h"

namespace lathe {

// Elements are f32, bf16 or f16. `dims` walks over x (operand a) and y (operand b). y has stride 0
// along the dimensions that are reduced.
struct VarianceKernels {
  // y = sum (x - mean)^2 / divisor. Writes all of y and of `means`, which has y's shape.
  void (*forward)(void* y, float* means, const void* x, DType type, double divisor,
                  const WalkDims& dims);
  // dx = dy 2 (x - mean) / divisor
  void (*backward)(void* dx, const void* dy, const void* x, const float* means, DType type,
                   double divisor, const WalkDims& dims);
};

}  // namespace lathe
