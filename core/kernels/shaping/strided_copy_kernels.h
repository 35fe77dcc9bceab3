// Declares the device's kernel that copies elements in any order of dimensions.
#pragma once

#include "lathe/core/kernels/shaping/operand_walk.h"

namespace lathe {

struct StridedCopyKernels {
  // to = from at all places of the walk, whose operands are `from` and `to`. Elements have `size`
  // bytes: 1, 2, 4 or 8.
  void (*copy)(const void* from, void* to, int64_t size, const OperandWalk<2>& walk);
};

}  // namespace lathe
