// A scale and a shift for each column. MobileBERT (Sun et al. 2020) has it in place of layer norms
// and calls it NoNorm.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Returns (x + residual) * weight + bias. x, residual: [N, C]; the residual may be undefined.
// weight, bias: [C]. x is float32 or bfloat16, on the host also float64, on a device also float16.
// The weight and the bias are float32, or float64 if x is. The backward pass adds their gradients
// to leaves' buffers and assigns the others. Throws InvalidArgument for shapes, dtypes and devices
// that do not fit.
Tensor ScaleShift(const Tensor& x, const Tensor& residual, const Tensor& weight,
                  const Tensor& bias);

// Composes the same of single ops: documentation and test oracle.
Tensor ScaleShiftComposed(const Tensor& x, const Tensor& residual, const Tensor& weight,
                          const Tensor& bias);

}  // namespace lathe
