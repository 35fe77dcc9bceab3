// The dimensions of a walk that a reduction keeps, and those that it reduces.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lathe/core/kernels/walk_dims.h"

namespace lathe::cuda {

// Some of a tensor's dimensions, outermost first.
struct WalkPart {
  int count = 0;
  int64_t sizes[kMaxWalkDims] = {}, strides[kMaxWalkDims] = {};

  void Add(int64_t size, int64_t stride) {
    sizes[count] = size;
    strides[count++] = stride;
  }
  int64_t NumElements() const {
    int64_t n = 1;
    for (int d = 0; d < count; ++d) n *= sizes[d];
    return n;
  }
  // Returns the offset of element i.
  __device__ int64_t Offset(int64_t i) const {
    int64_t offset = 0;
    for (int d = count - 1; d > 0; --d) {
      offset += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return count == 0 ? 0 : offset + i * strides[0];
  }
};

// The parts of x, operand a of the walk. Operand b has stride 0 along the reduced dimensions.
struct WalkParts {
  explicit WalkParts(const WalkDims& dims) {
    for (int d = 0; d < dims.count; ++d)
      (dims.b_strides[d] != 0 ? kept : reduced).Add(dims.sizes[d], dims.a_strides[d]);
  }
  WalkPart kept, reduced;
};

}  // namespace lathe::cuda
