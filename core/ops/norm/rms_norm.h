// Root mean square normalisation (Zhang and Sennrich 2019).
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Returns x / sqrt(mean(x^2) + eps) * weight, with the mean over the last dimension. x: [N, C],
// float32 or bfloat16, on the host also float64, on a device also float16. weight: [C], float32
// (float64 if x is). The backward pass adds the weight's gradient to a leaf's buffer and assigns
// dx. Throws for shapes, dtypes and devices that do not fit.
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps);

// Composes the same of single ops: documentation and test oracle.
Tensor RmsNormComposed(const Tensor& x, const Tensor& weight, double eps);

}  // namespace lathe
