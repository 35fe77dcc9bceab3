// Dense layers, y = act(x W^T + b): one alone, several that read the same input, or a feed-forward
// block.
//
// Weights are [out, in], as Transformers stores them. For bfloat16 x the products read bfloat16
// copies of the float32 weights and sum in float32. The backward pass adds the gradients of weights
// and biases straight into leaves' buffers and assigns dx.
#pragma once

#include "lathe/core/ops/activation.h"
#include "lathe/core/tensor.h"
#include "lathe/core/transposes.h"

namespace lathe {

// x: [N, in], weight: [out, in], bias: [out] or undefined. Returns [N, out].
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              ActivationKind activation = ActivationKind::kNone);

// Returns the outputs of several layers of one size, one below the other: [layers * N, out]. There
// is no activation. dx is summed from the last layer to the first. If the weights lie at a constant
// stride in the layers' order, and the biases too, a device computes all outputs in one product. If
// their gradients lie like that, it computes all of them in one product, too. In an arena the order
// of parameters is the reverse of their registration.
Tensor LinearStack(const Tensor& x, const std::vector<Tensor>& weights,
                   const std::vector<Tensor>& biases);

// Returns act(x W1^T + b1) W2^T + b2, with the values of two Linear: [N, in] -> [N, out].
// w1: [between, in], w2: [out, between]; either bias may be undefined. x: float32, bfloat16,
// float64 (on the host) or float16 (on a device). Weights and biases are as for Linear. On the host
// the activation's input is saved but not its output: the backward pass computes that again,
// together with the gradient. In float32 the two ways to compute GELU differ by less than 1e-6 of
// the values. W2's gradient differs as much from that of two Linear. Throws InvalidArgument for
// shapes, dtypes and devices that do not fit.
Tensor FeedForward(const Tensor& x, const Tensor& w1, const Tensor& b1, ActivationKind activation,
                   const Tensor& w2, const Tensor& b2);

// Returns op(a) op(b), [M, K] x [K, N] -> [M, N]. op transposes its operand if the flag is set.
Tensor MatrixProduct(const Tensor& a, const Tensor& b, Transposes transposes = {});

}  // namespace lathe
