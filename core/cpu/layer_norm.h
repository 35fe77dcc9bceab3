// Dropout + residual + layer normalisation, fused.
//
//   z = dropout(x) + residual;  y = (z - mean(z)) * rstd(z) * weight + bias
#pragma once

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/dropout.h"

namespace lathe::cpu {

struct LayerNormArgs {
  int64_t rows, n;
  double eps;
  DropoutMask mask;
};

struct LayerNormKernels {
  template <typename T, typename M = MathType<T>>
  struct Of {
    // y: (rows, n). Saved: z (rows, n), may be x; mean, rstd: (rows). residual may be null.
    void (*forward)(T* y, T* z, M* mean, M* rstd, const T* x, const T* residual, const M* weight,
                    const M* bias, const LayerNormArgs& args);
    // dz: (rows, n), gradient of the residual; dx: (rows, n) or null: gradient of x, assigned.
    // dweight, dbias: (n), accumulated; both or neither may be null. partial: scratch,
    // (chunks(rows, n), 2 n).
    void (*backward)(T* dz, T* dx, M* dweight, M* dbias, M* partial, const T* dy, const T* z,
                     const M* mean, const M* rstd, const M* weight, const LayerNormArgs& args);
  };
  Of<float> f32;
  Of<double> f64;
  Of<BFloat16> bf16;
  Of<Float16> f16 = {};  // on other devices than the host
  // Parts of the rows whose weight gradients are summed apart.
  int64_t (*chunks)(int64_t rows, int64_t n);
};

constexpr int64_t kLayerNormChunk = 32;  // rows of a part on the host

}  // namespace lathe::cpu
