// y = act(x W^T + b): dense layers, alone or several that read the same input.
//
// Weights are [out, in] as Transformers stores them. With bfloat16 x the products read bfloat16
// copies of the float32 weights and sum in float32. The backward pass accumulates weight and bias
// gradients of leaves straight into their buffers and assigns dx.
#pragma once

#include "lathe/core/ops/activation.h"
#include "lathe/core/tensor.h"

namespace lathe {

// x: [N, in], weight: [out, in], bias: [out] or undefined. Returns [N, out].
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              ActivationKind activation = ActivationKind::kNone);

// The outputs of several layers of one size, one below the other: [layers * N, out]. No activation.
// dx is summed from the last layer to the first. A GPU computes all outputs in one product, and all
// gradients of weights and biases in another, where these lie at constant strides in the layers'
// order: in an arena that is the reverse of registration.
Tensor LinearStack(const Tensor& x, const std::vector<Tensor>& weights,
                   const std::vector<Tensor>& biases);

// act(x W1^T + b1) W2^T + b2: [N, in] -> [N, out], by w1: [between, in] and w2: [out, between];
// either bias may be undefined. float32, bfloat16 (float16 on GPUs) or float64, weights and biases
// as Linear's. The values of two Linear. On the host the backward pass computes the activation
// again, together with its gradient, so that only what enters it is kept, not what leaves it, too:
// W2's gradient differs from two Linear's by what the two ways to compute GELU differ, less than
// 1e-6 of the values in float32. Throws InvalidArgument for shapes, dtypes and devices that do not
// fit.
Tensor FeedForward(const Tensor& x, const Tensor& w1, const Tensor& b1, ActivationKind activation,
                   const Tensor& w2, const Tensor& b2);

// op(a) op(b), [M, K] x [K, N] -> [M, N].
Tensor Matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);

}  // namespace lathe
