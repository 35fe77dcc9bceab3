// Declares the device's kernels that repeat heads of attention.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

struct RepeatHeadsArgs {
  int64_t rows, heads, head_dim;  // of x
  int64_t repeats;
};

// Elements are f32, bf16 or f16. Both kernels write all of their result.
struct HeadsKernels {
  // y: (rows, heads * repeats * head_dim), x: (rows, heads * head_dim)
  void (*repeat)(void* y, const void* x, DType type, const RepeatHeadsArgs& args);
  // dx of x's shape, dy of y's. Sums run in float32, in the order of the repetitions.
  void (*repeat_grad)(void* dx, const void* dy, DType type, const RepeatHeadsArgs& args);
};

}  // namespace lathe
