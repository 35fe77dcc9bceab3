// Conversions for mixed precision: parameters in float32, activations and products in a narrower
// dtype.
#pragma once

#include <type_traits>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/tensor.h"

namespace lathe {

// Returns x in another floating dtype, or x itself if it has that dtype. The gradient is cast back.
Tensor Cast(const Tensor& x, DType dtype);

// Returns x in float32 if it is bfloat16 or float16, else x itself. The gradient is cast back.
inline Tensor Widen(const Tensor& x) {
  const bool is_narrow = x.dtype() == DType::kBF16 || x.dtype() == DType::kF16;
  return is_narrow ? Cast(x, DType::kF32) : x;
}

// Returns a copy of a float32 leaf in a narrower dtype. The copy is kept with the leaf and renewed
// when the leaf's values have changed; an optimizer's step may write both at once. The copy is not
// differentiable: it is for ops that give the leaf its gradient themselves.
Tensor LowPrecisionCopy(const Tensor& leaf, DType dtype);

// Returns the values of a weight as products of T read them: the weight's own, or its copy in T.
template <typename T>
const T* WeightData(const Tensor& weight) {
  if constexpr (!std::is_same_v<T, cpu::MathType<T>>) {
    return LowPrecisionCopy(weight, DTypeOf<T>::value).template data<T>();
  } else {
    return weight.data<T>();
  }
}

}  // namespace lathe
