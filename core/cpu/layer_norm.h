// Dropout + residual + layer normalisation, fused.
//
//   z = dropout(x) + residual;  y = (z - mean(z)) * rstd(z) * weight + bias
#pragma once

#include "lathe/core/cpu/dropout.h"

namespace lathe::cpu {

template <typename T>
struct LayerNormArgs {
  int64_t rows, n;
  double eps;
  DropoutMask mask;
};

struct LayerNormKernels {
  template <typename T>
  struct Of {
    // y: (rows, n). Saved: z (rows, n), may be x; mean, rstd: (rows). residual may be null.
    void (*forward)(T* y, T* z, T* mean, T* rstd, const T* x, const T* residual, const T* weight,
                    const T* bias, const LayerNormArgs<T>& args);
    // dz: (rows, n), gradient of the residual; dx: (rows, n) or null: gradient of x, assigned.
    // dweight, dbias: (n), accumulated; both or neither may be null. partial: scratch, (ceil(rows /
    // 32), 2 n).
    void (*backward)(T* dz, T* dx, T* dweight, T* dbias, T* partial, const T* dy, const T* z,
                     const T* mean, const T* rstd, const T* weight, const LayerNormArgs<T>& args);
  };
  Of<float> f32;
  Of<double> f64;
};

constexpr int64_t kLayerNormChunk = 32;  // rows whose weight gradients are summed together

}  // namespace lathe::cpu
