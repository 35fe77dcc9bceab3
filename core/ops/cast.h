// Between dtypes, for mixed precision: float32 parameters, bfloat16 activations and products.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// x in another floating dtype; x itself if it has it. The gradient is cast back.
Tensor Cast(const Tensor& x, DType dtype);

// The values of a float32 leaf in bfloat16, kept with the leaf until its values change (AdamW
// writes them in its step). Not differentiable: for ops that give the leaf its gradient themselves.
Tensor LowPrecisionCopy(const Tensor& leaf, DType dtype);

}  // namespace lathe
