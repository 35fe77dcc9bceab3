// Declares the device's kernels that move elements.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Zeroes rows [*first, rows) of up to kMaxMatrices matrices, each of `rows` rows.
struct ClearRowsArgs {
  static constexpr int kMaxMatrices = 3;
  void* matrices[kMaxMatrices] = {};  // ended by the first null one
  int64_t rows = 0, row_bytes = 0;
  const int32_t* first = nullptr;  // on the device
};

// Kernels that move elements of `size` bytes: 2 or 4. Strides and columns count elements.
struct ShapeKernels {
  // Copies [rows, columns] from a matrix of row stride in_stride to one of row stride out_stride.
  void (*copy_block)(const void* in, int64_t in_stride, void* out, int64_t out_stride, int64_t rows,
                     int64_t columns, int64_t size);
  // out[i] = in[index[i]]: [count, columns] from [num_rows, columns]. The row is NaN if the index
  // (i32 or i64) is outside [0, num_rows).
  void (*gather_rows)(const void* in, const void* index, DType index_type, void* out, int64_t count,
                      int64_t num_rows, int64_t columns, int64_t size);
  void (*clear_rows)(const ClearRowsArgs& args);
};

}  // namespace lathe
