// Activation functions on their own. Dense layers apply theirs themselves (linear.h).
#pragma once

#include <string>

#include "lathe/core/cpu/activation.h"
#include "lathe/core/tensor.h"

namespace lathe {

// Returns the activation that Transformers calls `name` (gelu, gelu_new, gelu_pytorch_tanh, relu,
// tanh, silu, swish, ...). Throws InvalidArgument, with the known names, for any other name.
ActivationKind ParseActivation(const std::string& name);

// Returns act(x), of x's shape; for kNone x itself.
Tensor Activation(const Tensor& x, ActivationKind activation);

}  // namespace lathe
