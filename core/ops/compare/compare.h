// Comparisons of elements. They broadcast by NumPy's rules and return bool tensors, without
// gradient. Operands must have one dtype, whichever; float64 works on the host only. A comparison
// with NaN is false, but for NotEqual.
//
//   const Tensor is_padding = Equal(ids, 0);
//   const Tensor kept = LogicalAnd(LogicalNot(is_padding), Less(scores, 0.5));
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Return one bool for each element, as torch.eq does; not one for all, as torch.equal.
Tensor Equal(const Tensor& a, const Tensor& b);
Tensor NotEqual(const Tensor& a, const Tensor& b);
Tensor Less(const Tensor& a, const Tensor& b);
Tensor LessEqual(const Tensor& a, const Tensor& b);
Tensor Greater(const Tensor& a, const Tensor& b);
Tensor GreaterEqual(const Tensor& a, const Tensor& b);

// The same with one number, which is rounded to a's dtype. Throws if a has integers and the number
// is none that its dtype holds.
Tensor Equal(const Tensor& a, double b);
Tensor NotEqual(const Tensor& a, double b);
Tensor Less(const Tensor& a, double b);
Tensor LessEqual(const Tensor& a, double b);
Tensor Greater(const Tensor& a, double b);
Tensor GreaterEqual(const Tensor& a, double b);

// For bool or uint8 tensors, where every number but 0 is true.
Tensor LogicalAnd(const Tensor& a, const Tensor& b);
Tensor LogicalOr(const Tensor& a, const Tensor& b);
Tensor LogicalNot(const Tensor& x);

}  // namespace lathe
