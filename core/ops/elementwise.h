// Elementwise ops, all differentiable. Tensors are float32, bfloat16 or float64 on the host, and
// float32, bfloat16 or float16 on a device. Narrow numbers are computed in float32 and rounded
// once.
//
// Binary ops broadcast by NumPy's rules. Both operands must have one dtype. A NaN in an operand
// gives NaN: nothing is clipped.
//
//   Tensor y = Add(Mul(x, gain), bias);  // x: [T, H], gain: [T, 1], bias: [H]
#pragma once

#include <limits>

#include "lathe/core/tensor.h"

namespace lathe {

Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);

Tensor Pow(const Tensor& base, const Tensor& exponent);
// Return the larger and the smaller of two elements. If they are equal, each gets half of the
// gradient, as in PyTorch.
Tensor Maximum(const Tensor& a, const Tensor& b);
Tensor Minimum(const Tensor& a, const Tensor& b);

Tensor Scale(const Tensor& x, double factor);
Tensor AddScalar(const Tensor& x, double value);
Tensor Div(const Tensor& x, double divisor);
Tensor Div(double numerator, const Tensor& x);
Tensor Pow(const Tensor& base, double exponent);

// The least and the largest value that Clamp keeps.
struct ClampOptions {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};
// Returns min(max(x, options.min), options.max). The gradient passes where x lies between the
// limits, not on one, as in PyTorch 2.15. If min is larger than max, all elements become max.
// Throws if a limit is NaN.
//
//   Tensor y = Clamp(x, {.min = 0});
Tensor Clamp(const Tensor& x, const ClampOptions& options);

Tensor Neg(const Tensor& x);
Tensor Abs(const Tensor& x);  // the derivative at 0 is 0

Tensor Exp(const Tensor& x);
Tensor Log(const Tensor& x);
Tensor Sqrt(const Tensor& x);
Tensor Tanh(const Tensor& x);
Tensor Sigmoid(const Tensor& x);
Tensor Erf(const Tensor& x);
Tensor Relu(const Tensor& x);  // the derivative at 0 is 0

// Returns 1 where a and b are equal or both NaN, else 0, in their dtype. Has no gradient. It is for
// gradients of ops that choose among elements.
Tensor SameMask(const Tensor& a, const Tensor& b);

}  // namespace lathe
