// Sums, means and softmax, all differentiable. Tensors are float32, bfloat16 or float64 on the
// host, and float32, bfloat16 or float16 on a device.
//
// Results do not depend on the number of threads: partial sums have fixed bounds and are added in a
// fixed order.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

Tensor Sum(const Tensor& x);   // -> []; 0 if x is empty
Tensor Mean(const Tensor& x);  // -> []; NaN if x is empty, as in PyTorch

// Reduces the last dimension, which stays with size 1. x: [..., N] -> [..., 1].
Tensor SumLast(const Tensor& x);
Tensor MeanLast(const Tensor& x);

// Compute softmax and its logarithm over the last dimension. x: [..., N] -> [..., N]. The maximum
// is subtracted first, so large values don't overflow. A row of -inf alone gives NaN, as in
// PyTorch.
Tensor SoftmaxLast(const Tensor& x);
Tensor LogSoftmaxLast(const Tensor& x);

}  // namespace lathe
