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
  struct ForType {
    // y: (rows, n). Also sets z: (rows, n), which may be x, and mean and rstd: (rows), for the
    // backward pass. residual may be null.
    void (*forward)(T* y, T* z, M* mean, M* rstd, const T* x, const T* residual, const M* weight,
                    const M* bias, const LayerNormArgs& args);
    // Assigns dz: (rows, n), the gradient of the residual, and dx: (rows, n), the gradient of x,
    // unless it is null. Adds to dweight and dbias: (n); both or neither may be null. partial:
    // scratch memory, (chunks(rows, n), 2 n).
    void (*backward)(T* dz, T* dx, M* dweight, M* dbias, M* partial, const T* dy, const T* z,
                     const M* mean, const M* rstd, const M* weight, const LayerNormArgs& args);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
  // Returns the number of parts of the rows whose weight gradients are summed separately.
  int64_t (*chunks)(int64_t rows, int64_t n);
};

constexpr int64_t kLayerNormChunk = 32;  // rows of a part on the host

}  // namespace lathe::cpu
