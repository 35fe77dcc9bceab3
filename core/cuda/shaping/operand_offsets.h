// Offsets of several tensors' elements in flat kernels that walk over them together.
#pragma once

#include <cstdint>
#include <limits>

#include "lathe/core/cuda/launch.h"
#include "lathe/core/kernels/shaping/operand_walk.h"

namespace lathe::cuda {

// Sets the operands' offsets at a place of the walk.
template <typename Index, int N>
__device__ inline void OffsetsAt(const OperandWalk<N>& walk, Index place, int64_t (&offsets)[N]) {
  for (int k = 0; k < N; ++k) offsets[k] = 0;
  for (int d = walk.count - 1; d >= 0; --d) {
    const Index size = static_cast<Index>(walk.sizes[d]), outer = place / size;
    const int64_t at = place - outer * size;
    for (int k = 0; k < N; ++k) offsets[k] += at * walk.strides[k][d];
    place = outer;
  }
}

// Calls body(Index{}) with the type for places 0 to n - 1: uint32_t if they fit, because its
// divisions are cheaper.
template <typename Body>
void WithIndexType(int64_t n, Body body) {
  if (n <= std::numeric_limits<uint32_t>::max()) return body(uint32_t{});
  body(int64_t{});
}

// Calls body(Unit{}) with the type by which elements of `size` bytes are moved: 1, 2, 4 or 8.
template <typename Body>
void WithElement(int64_t size, Body body) {
  if (size == 1) return body(uint8_t{});
  if (size == 2) return body(uint16_t{});
  if (size == 4) return body(uint32_t{});
  body(uint64_t{});
}

}  // namespace lathe::cuda
