// Ops that move elements and compute nothing, all differentiable. float32 or bfloat16; on
// the host float64, elsewhere float16, too.
#pragma once

#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// Views: they share x's storage.
Tensor ReshapeOp(const Tensor& x, Shape shape);                 // one -1 is worked out
Tensor SliceRows(const Tensor& x, int64_t begin, int64_t end);  // [R, ...] -> [end-begin, ...]

// Copies.
Tensor SliceColumns(const Tensor& x, int64_t begin, int64_t end);  // [R, C] -> [R, end-begin]
Tensor ConcatRows(const std::vector<Tensor>& parts);               // [R_i, ...] -> [sum R_i, ...]
Tensor ConcatColumns(const std::vector<Tensor>& parts);            // [R, C_i] -> [R, sum C_i]
Tensor Transpose(const Tensor& x);                                 // [R, C] -> [C, R]

// Rows of x by number: x [R, ...], index [...] int32 or int64 -> index.shape + x.shape[1:]. Throws
// for a number outside [0, R); an index that lies on a device, as x does, can't be looked at: such
// a number gives NaN and no gradient. The backward pass adds the gradients of rows that were taken
// several times, in a fixed order; into a leaf's buffer directly.
Tensor GatherRows(const Tensor& x, const Tensor& index);

}  // namespace lathe
