// Variances over any dimensions, differentiable.
#pragma once

#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

struct VarianceOptions {
  int64_t correction = 1;  // the sum is divided by n - correction; 0: the biased variance
  bool keepdim = false;    // the dimensions stay, with size 1
};

// Returns sum (x - mean)^2 / max(0, n - correction) over the dimensions `dims`, which have n
// elements; none means all. If n is not larger than the correction, the result is NaN, or infinite,
// as in PyTorch. Sums are formed in double, in a fixed order. x is float32, bfloat16 or float64 on
// the host, and float32, bfloat16 or float16 on a device. Throws InvalidArgument for a dimension
// that x does not have or that is named twice.
//
//   Tensor per_column = Variance(x, {0});  // x: [N, C] -> [C]
Tensor Variance(const Tensor& x, const std::vector<int>& dims = {},
                const VarianceOptions& options = {});

// Composes the same of single ops: documentation and test oracle.
Tensor VarianceComposed(const Tensor& x, const std::vector<int>& dims = {},
                        const VarianceOptions& options = {});

}  // namespace lathe
