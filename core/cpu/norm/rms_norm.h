// Root mean square normalisation (Zhang and Sennrich 2019):
//
//   y = x * rstd(x) * weight,  rstd(x) = 1 / sqrt(mean(x^2) + eps)
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

struct RmsNormArgs {
  int64_t rows, n;
  double eps;
};

struct RmsNormKernels {
  template <typename T, typename M = MathType<T>>
  struct ForType {
    // y: (rows, n). Also sets rstd: (rows), for the backward pass.
    void (*forward)(T* y, M* rstd, const T* x, const M* weight, const RmsNormArgs& args);
    // Assigns dx: (rows, n). Adds to dweight: (n), which may be null. partial: scratch memory,
    // (chunks(rows, n), n).
    void (*backward)(T* dx, M* dweight, M* partial, const T* dy, const T* x, const M* rstd,
                     const M* weight, const RmsNormArgs& args);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
  // Returns the number of parts of the rows whose weight gradients are summed separately.
  int64_t (*chunks)(int64_t rows, int64_t n);
};

}  // namespace lathe::cpu
