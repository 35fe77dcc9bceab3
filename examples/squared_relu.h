// SquaredRelu: an op of the program's own, with a loop for the host and kernels for GPUs.
//
//   y = max(x, 0)^2      dx = 2 max(x, 0) dy      (So et al. 2021)
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"

// x: any shape, float32 -> the same shape. Throws for other types.
lathe::Tensor SquaredRelu(const lathe::Tensor& x);

// The kernels for GPUs, which squared_relu.cu has. All pointers are to n floats on the device.
struct SquaredReluKernels {
  void (*forward)(float* y, const float* x, int64_t n);
  void (*backward)(float* dx, const float* dy, const float* x, int64_t n);
};
