// Broadcasting by NumPy's rules, and its reverse.
#pragma once

#include "lathe/core/device_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe {

// The common shape of a and b; throws `[op] shapes ... don't broadcast`.
Shape BroadcastShape(const char* op, const Shape& a, const Shape& b);

// Element strides with which a tensor of `shape` is read as one of `target`: 0 where it is
// repeated.
Shape BroadcastStrides(const Shape& shape, const Shape& target);

// The walk over a tensor of `shape` along with two operands of these strides, adjacent dimensions
// merged where both operands allow it. Throws if more than kMaxWalkDims are left.
WalkDims MergedDims(const Shape& shape, const Shape& a_strides, const Shape& b_strides);

// Sums `t` over the dimensions along which `shape` was broadcast; `t` itself if the shapes agree.
Tensor SumToShape(const Tensor& t, const Shape& shape);

// target += other, same shape and dtype (float32, float64 or bfloat16).
void AddInPlace(Tensor& target, const Tensor& other);

}  // namespace lathe
