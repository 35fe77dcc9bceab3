// Elementwise ops, all differentiable. Tensors are float32 or float64 on the host, and float32,
// bfloat16 or float16 on a device.
//
// Binary ops broadcast by NumPy's rules. Both operands must have one dtype. A NaN in an operand
// gives NaN: nothing is clipped.
//
//   Tensor y = Add(Mul(x, gain), bias);  // x: [T, H], gain: [T, 1], bias: [H]
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);

Tensor Scale(const Tensor& x, double factor);
Tensor AddScalar(const Tensor& x, double value);

Tensor Exp(const Tensor& x);
Tensor Log(const Tensor& x);
Tensor Sqrt(const Tensor& x);
Tensor Tanh(const Tensor& x);
Tensor Sigmoid(const Tensor& x);
Tensor Erf(const Tensor& x);
Tensor Relu(const Tensor& x);  // the derivative at 0 is 0

}  // namespace lathe
