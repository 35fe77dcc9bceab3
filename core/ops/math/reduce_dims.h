// Sums, means and softmax over any dimensions, differentiable. core/ops/reduce.h has those over all
// of them, and over the last one.
#pragma once

#include <concepts>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// Reduce the dimensions `dims`, of which negative ones count from the end; none means all. They are
// left out of the result, or stay with size 1 if `keepdim`. Sums are formed in double, in a fixed
// order. The mean of no element is NaN. x is float32, bfloat16 or float64 on the host, and float32,
// bfloat16 or float16 on a device. Throw InvalidArgument for a dimension that x does not have or
// that is named twice.
//
//   Tensor per_column = Mean(table, 0);         // table: [N, C] -> [C]
//   Tensor per_channel = Sum(x, {0, 2}, true);  // x: [B, C, L] -> [1, C, 1]
Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keepdim = false);
Tensor Mean(const Tensor& x, const std::vector<int>& dims, bool keepdim = false);
Tensor Sum(const Tensor& x, std::signed_integral auto dim, bool keepdim = false) {
  return Sum(x, std::vector<int>{static_cast<int>(dim)}, keepdim);
}
Tensor Mean(const Tensor& x, std::signed_integral auto dim, bool keepdim = false) {
  return Mean(x, std::vector<int>{static_cast<int>(dim)}, keepdim);
}

// Compute softmax and its logarithm over dimension `dim`, as SoftmaxLast and LogSoftmaxLast do over
// the last one. A negative `dim` counts from the end. Another dimension than the last one is moved
// there and back, as copies. Throw InvalidArgument if x has no such dimension.
Tensor Softmax(const Tensor& x, int dim);
Tensor LogSoftmax(const Tensor& x, int dim);

}  // namespace lathe
