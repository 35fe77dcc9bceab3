// WalkDims: the sizes and strides by which kernels walk over two tensors together.
#pragma once

#include <cstdint>

namespace lathe {

// A walk over two tensors together, outermost dimension first. Strides count elements; a stride of
// 0 repeats the operand along that dimension. No size is 1. Made by core/broadcast.h.
constexpr int kMaxWalkDims = 8;
struct WalkDims {
  int count;
  int64_t sizes[kMaxWalkDims], a_strides[kMaxWalkDims], b_strides[kMaxWalkDims];
};

}  // namespace lathe
