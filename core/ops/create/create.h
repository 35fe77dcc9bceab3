// Fresh tensors: numbers in a row, and random numbers.
#pragma once

#include <type_traits>

#include "lathe/core/tensor.h"

namespace lathe {

// Returns start, start + step, and so on, before `end`: [n] with n = ceil((end - start) / step), 0
// if that is negative. Each number is computed as start + i * step in double, then rounded to
// `dtype`. Throws InvalidArgument if step is 0 or a number is not finite.
Tensor ArangeOf(double start, double end, double step, DType dtype, Device device = {});

// Do the same with step 1 and from 0 unless given. As in PyTorch, the dtype is int64 if all numbers
// are integers, else float32.
//
//   Arange(4);           // [0 1 2 3]
//   Arange(1, 2, 0.25);  // [1.   1.25 1.5  1.75]
template <typename Start, typename End, typename Step = int>
Tensor Arange(Start start, End end, Step step = 1) {
  constexpr bool kIntegers =
      std::is_integral_v<Start> && std::is_integral_v<End> && std::is_integral_v<Step>;
  return ArangeOf(static_cast<double>(start), static_cast<double>(end), static_cast<double>(step),
                  kIntegers ? DType::kI64 : DType::kF32);
}
template <typename End>
Tensor Arange(End end) {
  return Arange(0, end);
}

struct RandomOptions {
  DType dtype = DType::kF32;  // float32, bfloat16, float16 or float64
  Device device = {};
};

// Draw standard normal numbers, and uniform numbers in (0, 1). Element i depends only on the seed
// and on i. So the numbers are the same on every device and with any number of threads. Those of a
// shorter tensor are the first of a longer one. They are drawn on the host in double, then rounded
// to the dtype. Rounding may make a uniform number 1 in a narrow dtype.
//
//   Tensor noise = Randn({32, 128}, /*seed=*/7);
Tensor Randn(const Shape& shape, uint64_t seed, const RandomOptions& options = {});
Tensor Rand(const Shape& shape, uint64_t seed, const RandomOptions& options = {});

}  // namespace lathe
