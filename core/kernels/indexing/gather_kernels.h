// Declares the device's kernels that read and add elements by number.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Lines of elements and the numbers that pick from them. A line is the elements of [outer, size,
// inner] with one outer and one inner position. The numbers are [outer, count, inner], or [count]
// for all lines alike.
struct LineIndex {
  const void* numbers;
  DType type;      // i32 or i64
  bool is_shared;  // [count] for all lines
  int64_t outer, size, inner, count;
};

struct GatherKernels {
  // y[o, i, c] = x[o, index[o, i, c], c] for y: [outer, count, inner]. Elements have `element_size`
  // bytes: 1, 2, 4 or 8. A number outside of [0, size) gives an element with all bits set, which is
  // NaN in a floating type.
  void (*gather)(void* y, const void* x, int64_t element_size, const LineIndex& index);
  // to[o, index[o, i, c], c] += x[o, i, c], in float, in the order of i. f32, bf16 or f16. Ignores
  // numbers outside of [0, size). It is for small counts: the work grows with the square of the
  // count.
  void (*scatter_add)(void* to, const void* x, DType type, const LineIndex& index);
  // Writes the elements of [outer, size, inner] that the numbers name, to rows [outer, count,
  // inner] i64. If the numbers are shared, writes the rows of [outer * size, inner], to rows
  // [outer, count]. Writes -1 for a number outside of [0, size).
  void (*rows_of)(int64_t* rows, const LineIndex& index);
  // Sets all bits of element [o, 0, c] of `to` if a number of its line lies outside of [0, size).
  void (*mark_outside)(void* to, int64_t element_size, const LineIndex& index);
  // y[i, k] = `one` if index[i] is k, else 0, for y: [count, classes]. A number outside of
  // [0, classes) gives a row with all bits set. Elements have `element_size` bytes; `one` has the
  // bits of 1.
  void (*one_hot)(void* y, int64_t element_size, uint64_t one, const void* index, DType type,
                  int64_t count, int64_t classes);
};

}  // namespace lathe
