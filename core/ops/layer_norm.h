// Layer normalisation (Ba et al. 2016), alone and fused with the dropout and the residual sum
// before it.
//
// The backward pass adds the weight's and the bias's gradients to leaves' buffers and assigns the
// others.
#pragma once

#include "lathe/core/ops/dropout.h"

namespace lathe {

// Returns (x - mean) / sqrt(var + eps) * weight + bias, with mean and variance over the last
// dimension. x: [N, C], weight, bias: [C]; the bias may be undefined.
Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);

// Returns LayerNorm(Dropout(x) + residual). x, residual: [N, C]; the bias may be undefined.
Tensor DropoutAddLayerNorm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                           const Tensor& bias, double eps, const DropoutSpec& dropout);

// Composes the same of single ops: documentation and test oracle.
Tensor DropoutAddLayerNormComposed(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                   const Tensor& bias, double eps, const DropoutSpec& dropout);

}  // namespace lathe
