// Operators of tensors, with scalars on either side. Both operands broadcast, as for Add.
//
//   Tensor y = (a + b * 2) / Sqrt(variance + 1e-5) - 1;
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);  // element by element
Tensor operator/(const Tensor& a, const Tensor& b);

Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);

Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);

Tensor operator-(const Tensor& x);

}  // namespace lathe
