// Dimensions in another order, as copies: tensors are always contiguous. Tensors may have any
// dtype; floating-point ones are differentiable.
#pragma once

#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// Returns a copy of x whose dimension i is dimension dims[i] of x. Negative numbers count from the
// end. Throws unless `dims` names each dimension of x once.
//
//   const Tensor heads = Permute(Reshape(x, {b, s, h, d}), {0, 2, 1, 3});  // [b, h, s, d]
Tensor Permute(const Tensor& x, const std::vector<int64_t>& dims);

// Returns a copy of x with two dimensions exchanged. Negative numbers count from the end. Throws if
// x has no such dimension.
Tensor Transpose(const Tensor& x, int64_t dim0, int64_t dim1);

// Returns the transpose of a matrix: [R, C] -> [C, R]. Throws for other shapes.
Tensor Transpose(const Tensor& x);

}  // namespace lathe
