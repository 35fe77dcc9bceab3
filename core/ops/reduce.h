// Sums, means and softmax on float32 or float64 tensors, on devices float32, bfloat16 or float16;
// all differentiable.
//
// The result does not depend on the number of threads: partial sums have fixed bounds and are added
// in order.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

Tensor Sum(const Tensor& x);   // -> []; 0 of nothing
Tensor Mean(const Tensor& x);  // -> []; NaN of nothing, as in PyTorch

// Over the last dimension, which stays with size 1. x: [..., N] -> [..., 1].
Tensor SumLast(const Tensor& x);
Tensor MeanLast(const Tensor& x);

// Over the last dimension; x: [..., N] -> [..., N]. The maximum is subtracted first, so large
// values don't overflow. A row of -inf alone gives NaN, as in PyTorch.
Tensor SoftmaxLast(const Tensor& x);
Tensor LogSoftmaxLast(const Tensor& x);

}  // namespace lathe
