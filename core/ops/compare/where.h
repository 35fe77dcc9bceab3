// The choice between two tensors, element by element.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Returns a where the condition is true, else b. All three broadcast by NumPy's rules. The
// condition is bool or uint8, where every number but 0 is true. a and b have one dtype, any; if it
// is a floating-point one, the op is differentiable in both. An element that was not chosen gets a
// gradient of 0, also if it is NaN or infinite.
Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b);

// Returns x with `value` where the mask is true: bool or uint8, broadcast to x's shape. Throws if
// x's dtype can't hold the value.
//
//   const Tensor scores = MaskedFill(products, is_padding, -INFINITY);
Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value);

}  // namespace lathe
