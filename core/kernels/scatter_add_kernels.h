// Declares the device's kernel that sums rows with equal indices.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// to[index[i]] += x[i], where `to` and x have rows of `columns` numbers of `type`: f32, bf16 or
// f16. The rows of x with one index are summed in float32, in a fixed order. Indices outside
// [0, num_rows) and the index `skipped` are ignored.
struct ScatterAddArgs {
  void* to;       // [num_rows, columns]
  const void* x;  // [count, columns]
  DType type;
  const void* index;  // [count], i32 or i64
  DType index_type;
  int64_t count, num_rows, columns;
  int64_t skipped;  // -1: none
  // Scratch: [2, num_rows] i32, zeroed, and [count, columns].
  void* counters;
  float* partial;
};
struct ScatterAddKernels {
  void (*add)(const ScatterAddArgs& args);
};

}  // namespace lathe
