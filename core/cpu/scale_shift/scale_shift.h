// A residual sum, scaled and shifted column by column:
//
//   z = x + residual;  y = z * weight + bias
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

struct ScaleShiftKernels {
  template <typename T, typename M = MathType<T>>
  struct ForType {
    // y: (rows, n). residual may be null. Then z is not written, else z: (rows, n) is kept for the
    // backward pass.
    void (*forward)(T* y, T* z, const T* x, const T* residual, const M* weight, const M* bias,
                    int64_t rows, int64_t n);
    // Assigns dz = dy * weight: (rows, n). Adds the column sums of dy * z to dweight and those of
    // dy to dbias: (n). partial: scratch memory, (chunks(rows, n), 2 n).
    void (*backward)(T* dz, M* dweight, M* dbias, M* partial, const T* dy, const T* z,
                     const M* weight, int64_t rows, int64_t n);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
  // Returns the number of parts of the rows whose weight gradients are summed separately.
  int64_t (*chunks)(int64_t rows, int64_t n);
};

}  // namespace lathe::cpu
