// y = act(x W^T + b): dense layers, alone or several that read the same input.
//
// Weights are [out, in] as Transformers stores them. With bfloat16 x the products read bfloat16
// copies of the float32 weights and sum in float32. The backward pass accumulates weight and bias
// gradients of leaves straight into their buffers and assigns dx.
#pragma once

#include "lathe/core/cpu/activation.h"
#include "lathe/core/tensor.h"

namespace lathe {

using ActivationKind = cpu::ActivationKind;

// By Transformers' names (gelu, gelu_new, gelu_pytorch_tanh, relu, tanh, silu, swish, ...); throws
// InvalidArgument listing the known ones.
ActivationKind ParseActivation(const std::string& name);

// x: [N, in], weight: [out, in], bias: [out] or undefined. Returns [N, out].
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              ActivationKind activation = ActivationKind::kNone);

// The outputs of several layers of one size, one below the other: [layers * N, out]. No activation.
// dx is summed from the last layer to the first. A GPU computes all outputs in one product, and all
// gradients of weights and biases in another, where these lie at constant strides in the layers'
// order: in an arena that is the reverse of registration.
Tensor LinearStack(const Tensor& x, const std::vector<Tensor>& weights,
                   const std::vector<Tensor>& biases);

// act(x), any shape.
Tensor Activation(const Tensor& x, ActivationKind activation);

// op(a) op(b), [M, K] x [K, N] -> [M, N].
Tensor Matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);

}  // namespace lathe
