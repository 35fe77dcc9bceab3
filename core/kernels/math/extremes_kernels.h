// Declares the device's kernels that choose the largest or smallest elements along a dimension.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// x is [outer, n, inner], and the results are [outer, k, inner].
struct SelectArgs {
  int64_t outer = 1, n = 1, inner = 1, k = 1;
  bool largest = true;    // false: the smallest come first
  bool nan_first = true;  // NaN comes before all numbers; false: behind them
};

// Elements are f32, bf16 or f16.
struct ExtremesKernels {
  // Writes the first k elements of each column along n, in order, and their places along n. Equal
  // elements come in the order of their places. `indices` may be null.
  void (*select)(void* values, int64_t* indices, const void* x, DType type, const SelectArgs& args);
  // Writes dy to its places in dx, [outer, n, inner], which holds zeros.
  void (*scatter)(void* dx, const void* dy, const int64_t* indices, DType type,
                  const SelectArgs& args);
};

}  // namespace lathe
