// Heads of keys and values that several heads of queries share (Ainslie et al. 2023).
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"

namespace lathe {

// Returns [N, heads * repeats * d] for x: [N, heads * d]. Head h of the result is head h / repeats
// of x. x is float32 or bfloat16, on the host also float64, on a device also float16. The gradient
// of a head is the sum of those of its repetitions, in their order. With one repetition the result
// is x. Throws for shapes that do not fit.
Tensor RepeatHeads(const Tensor& x, int64_t heads, int64_t repeats);

// Composes the same of single ops: documentation and test oracle.
Tensor RepeatHeadsComposed(const Tensor& x, int64_t heads, int64_t repeats);

}  // namespace lathe
