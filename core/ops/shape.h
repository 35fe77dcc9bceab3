// Ops that move elements and compute nothing, all differentiable. Tensors are float32 or bfloat16,
// on the host also float64, on a device also float16. More such ops, for any dimension and dtype,
// are in core/ops/shaping/ and core/ops/indexing/.
#pragma once

#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// These return views, which share x's storage.
Tensor Reshape(const Tensor& x, Shape shape);                   // one size may be -1: the rest
Tensor SliceRows(const Tensor& x, int64_t begin, int64_t end);  // [R, ...] -> [end-begin, ...]

// These return copies.
Tensor SliceColumns(const Tensor& x, int64_t begin, int64_t end);  // [R, C] -> [R, end-begin]
Tensor ConcatRows(const std::vector<Tensor>& parts);               // [R_i, ...] -> [sum R_i, ...]
Tensor ConcatColumns(const std::vector<Tensor>& parts);            // [R, C_i] -> [R, sum C_i]

// Returns the rows of x that `index` names, in the shape index.shape + x.shape[1:]. x: [R, ...],
// index: int32 or int64. Throws for a number outside [0, R). If x and the index lie on a device,
// the index is not checked: such a number gives NaN and no gradient. The backward pass adds up the
// gradients of a row that was taken several times, in a fixed order. It adds straight into a leaf's
// buffer.
Tensor GatherRows(const Tensor& x, const Tensor& index);

}  // namespace lathe
