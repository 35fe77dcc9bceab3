// OperandWalk: the sizes and strides by which kernels walk over several tensors together.
#pragma once

#include <cstdint>

#include "lathe/core/kernels/walk_dims.h"

namespace lathe {

// A walk over N tensors together, outermost dimension first. Strides count elements; a stride of 0
// repeats the operand along that dimension. No size is 1. Made by core/ops/shaping/operand_runs.h.
template <int N>
struct OperandWalk {
  int count;  // of the dimensions; 0 for a single element
  int64_t sizes[kMaxWalkDims];
  int64_t strides[N][kMaxWalkDims];
};

// Returns the number of places that a walk visits.
template <int N>
int64_t NumPlaces(const OperandWalk<N>& walk) {
  int64_t n = 1;
  for (int d = 0; d < walk.count; ++d) n *= walk.sizes[d];
  return n;
}

}  // namespace lathe
