// Declares the device's kernels for the elementwise ops.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/kernels/walk_dims.h"

namespace lathe {

// The functions F are those of core/kernels/elementwise_functions.h. Elements are f32, bf16 or f16.
//
// y_i = f(x_i)
template <typename F>
struct MapKernel {
  void (*run)(const char* op, F f, void* y, const void* x, DType type, int64_t n);
};
// y = f(a, b); y is contiguous along `dims`.
template <typename F>
struct ZipKernel {
  void (*run)(const char* op, F f, void* y, const void* a, const void* b, DType type,
              const WalkDims& dims);
};

}  // namespace lathe
