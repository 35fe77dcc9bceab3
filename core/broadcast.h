// Broadcasting by NumPy's rules, and its reverse.
#pragma once

#include "lathe/core/kernels/walk_dims.h"
#include "lathe/core/tensor.h"

namespace lathe {

// Returns the common shape of a and b; throws `[op] shapes ... don't broadcast`.
Shape BroadcastShape(const char* op, const Shape& a, const Shape& b);

// Returns the element strides for reading a tensor of `shape` as one of `target`; 0 for a repeated
// dimension.
Shape BroadcastStrides(const Shape& shape, const Shape& target);

// Returns the walk over a tensor of `shape` together with two operands of these strides. Adjacent
// dimensions are merged if both operands allow it. Throws if more than kMaxWalkDims are left.
WalkDims MergedDims(const Shape& shape, const Shape& a_strides, const Shape& b_strides);

// Sums `t` over the dimensions along which `shape` was broadcast; returns `t` itself if the shapes
// are equal.
Tensor SumToShape(const Tensor& t, const Shape& shape);

// target += other, of the same shape and dtype: float32, float64 or bfloat16 on the host; float32,
// bfloat16 or float16 on other devices.
void AddInPlace(Tensor& target, const Tensor& other);

}  // namespace lathe
