#include "lathe/core/ops/operators/operators.h"

#include "lathe/core/ops/elementwise.h"

namespace lathe {

Tensor operator+(const Tensor& a, const Tensor& b) { return Add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return Sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return Mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return Div(a, b); }

Tensor operator+(const Tensor& a, double b) { return AddScalar(a, b); }
Tensor operator-(const Tensor& a, double b) { return AddScalar(a, -b); }
Tensor operator*(const Tensor& a, double b) { return Scale(a, b); }
Tensor operator/(const Tensor& a, double b) { return Div(a, b); }

Tensor operator+(double a, const Tensor& b) { return AddScalar(b, a); }
Tensor operator-(double a, const Tensor& b) { return AddScalar(Neg(b), a); }
Tensor operator*(double a, const Tensor& b) { return Scale(b, a); }
Tensor operator/(double a, const Tensor& b) { return Div(a, b); }

Tensor operator-(const Tensor& x) { return Neg(x); }

}  // namespace lathe
