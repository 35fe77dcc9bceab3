// Gated activations (Shazeer 2020, "GLU Variants Improve Transformer"): GeGLU, SwiGLU and others.
#pragma once

#include "lathe/core/ops/activation.h"
#include "lathe/core/tensor.h"

namespace lathe {

// Where GatedActivation finds the two halves of x.
enum class GateHalves : uint8_t {
  kColumns,  // side by side, as one layer of 2 I columns makes them
  kRows,     // one below the other, as LinearStack of two layers makes them
};

// Returns act(a) * b, [N, I], where a is the first half of x and b the second. x: [N, 2 I] or
// [2 N, I], float32 or bfloat16, on the host also float64, on a device also float16. kNone stands
// for no activation: a * b. Throws if the columns or rows have no halves.
Tensor GatedActivation(const Tensor& x, ActivationKind activation, GateHalves halves);

// Composes the same of single ops: documentation and test oracle.
Tensor GatedActivationComposed(const Tensor& x, ActivationKind activation, GateHalves halves);

}  // namespace lathe
