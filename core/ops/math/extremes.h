// The largest and smallest elements along dimensions, and where they are. Values are
// differentiable.
//
//   const auto [values, indices] = Max(logits, -1);  // logits: [B, C]; both results: [B]
//   const Tensor predicted = ArgMax(logits, -1);     // the same indices
//
// Tensors are float32, bfloat16 or float64 on the host, and float32, bfloat16 or float16 on a
// device. Indices are int64. Results are those of PyTorch:
//   - equal elements: the first one counts. Max(x, dim), Min(x, dim) and TopK give the whole
//     gradient to it. AMax, AMin, Max(x) and Min(x) give equal parts to all that are equal.
//   - NaN: a NaN is the result of Max and of Min, with the index of the first NaN. TopK counts NaN
//     as the largest number. Where PyTorch's amax has the gradient NaN, NaNs here share dy.
// All throw InvalidArgument for a dimension that x does not have, and for one without elements.
#pragma once

#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

struct ValuesAndIndices {
  Tensor values, indices;
};

// Reduce one dimension; a negative `dim` counts from the end. The dimension is left out of the
// results, or stays with size 1 if `keepdim`.
ValuesAndIndices Max(const Tensor& x, int dim, bool keepdim = false);
ValuesAndIndices Min(const Tensor& x, int dim, bool keepdim = false);
Tensor ArgMax(const Tensor& x, int dim, bool keepdim = false);
Tensor ArgMin(const Tensor& x, int dim, bool keepdim = false);

// Reduce all dimensions: -> []. The indices count the elements of the whole tensor.
Tensor Max(const Tensor& x);
Tensor Min(const Tensor& x);
Tensor ArgMax(const Tensor& x);
Tensor ArgMin(const Tensor& x);

// Reduce several dimensions; none means all.
Tensor AMax(const Tensor& x, const std::vector<int>& dims, bool keepdim = false);
Tensor AMin(const Tensor& x, const std::vector<int>& dims, bool keepdim = false);

// Returns the k largest elements along `dim`, in descending order, or the k smallest in ascending
// order. Both results have x's shape with k in place of the dimension's size. A device searches k
// times, so k should be small there. Throws unless k lies between 0 and that size.
ValuesAndIndices TopK(const Tensor& x, int64_t k, int dim = -1, bool largest = true);

}  // namespace lathe
