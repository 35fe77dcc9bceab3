// Activation functions, by themselves; dense layers have theirs built in (linear.h).
#pragma once

#include <string>

#include "lathe/core/cpu/activation.h"
#include "lathe/core/tensor.h"

namespace lathe {

using ActivationKind = cpu::ActivationKind;

// By Transformers' names (gelu, gelu_new, gelu_pytorch_tanh, relu, tanh, silu, swish, ...); throws
// InvalidArgument listing the known ones.
ActivationKind ParseActivation(const std::string& name);

// act(x), any shape; x itself for kNone.
Tensor Activation(const Tensor& x, ActivationKind activation);

}  // namespace lathe
