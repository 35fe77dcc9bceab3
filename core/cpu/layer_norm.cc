#include "lathe/core/cpu/layer_norm.h"

#include <cmath>

namespace lathe::cpu {
namespace {

constexpr int64_t kMaxColumns = 1 << 15;

template <typename T>
void Forward(T* y, T* z, T* mean, T* rstd, const T* x, const T* residual, const T* weight,
             const T* bias, const LayerNormArgs<T>& args) {
  const int64_t n = args.n;
  const T scale = static_cast<T>(args.mask.scale);
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* xr = x + r * n;
    T* zr = z + r * n;
    T sum = 0;
    if (args.mask.threshold > 0) {
      alignas(64) uint32_t bits[kMaxColumns];
      RowBits(args.mask.key0, args.mask.key1, args.mask.step,
              static_cast<uint32_t>(args.mask.row_samples[r]),
              static_cast<uint32_t>(args.mask.row_positions[r]), n, bits);
      for (int64_t c = 0; c < n; ++c) {
        zr[c] = bits[c] < args.mask.threshold ? T(0) : xr[c] * scale;
      }
      xr = zr;
    }
    if (residual != nullptr) {
      const T* rr = residual + r * n;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < n; ++c) {
        zr[c] = xr[c] + rr[c];
        sum += zr[c];
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < n; ++c) {
        zr[c] = xr[c];
        sum += zr[c];
      }
    }
    const T m = sum / static_cast<T>(n);
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < n; ++c) squares += (zr[c] - m) * (zr[c] - m);
    const T s = T(1) / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(args.eps));
    mean[r] = m;
    rstd[r] = s;
    T* yr = y + r * n;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) yr[c] = (zr[c] - m) * s * weight[c] + bias[c];
  }
}

// With g = dy * weight and xhat = (z - mean) * rstd:
//   dz = rstd * (g - mean(g) - xhat * mean(g * xhat)); dweight = sum dy * xhat; dbias = sum dy.
template <typename T>
void Backward(T* dz, T* dx, T* dweight, T* dbias, T* partial, const T* dy, const T* z,
              const T* mean, const T* rstd, const T* weight, const LayerNormArgs<T>& args) {
  const int64_t n = args.n;
  const int64_t chunks = (args.rows + kLayerNormChunk - 1) / kLayerNormChunk;
  const T scale = static_cast<T>(args.mask.scale);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    T* dw = partial + chunk * 2 * n;
    T* db = dw + n;
    for (int64_t c = 0; c < 2 * n; ++c) dw[c] = 0;
    const int64_t end =
        (chunk + 1) * kLayerNormChunk < args.rows ? (chunk + 1) * kLayerNormChunk : args.rows;
    for (int64_t r = chunk * kLayerNormChunk; r < end; ++r) {
      const T* dyr = dy + r * n;
      const T* zr = z + r * n;
      T* dzr = dz + r * n;
      const T m = mean[r], s = rstd[r];
      T sum_g = 0, sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
      for (int64_t c = 0; c < n; ++c) {
        const T xhat = (zr[c] - m) * s;
        const T g = dyr[c] * weight[c];
        sum_g += g;
        sum_gx += g * xhat;
        dw[c] += dyr[c] * xhat;
        db[c] += dyr[c];
      }
      sum_g /= static_cast<T>(n);
      sum_gx /= static_cast<T>(n);
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        dzr[c] = s * (dyr[c] * weight[c] - sum_g - (zr[c] - m) * s * sum_gx);
      }
      if (dx == nullptr) continue;
      T* dxr = dx + r * n;
      if (args.mask.threshold > 0) {
        alignas(64) uint32_t bits[kMaxColumns];
        RowBits(args.mask.key0, args.mask.key1, args.mask.step,
                static_cast<uint32_t>(args.mask.row_samples[r]),
                static_cast<uint32_t>(args.mask.row_positions[r]), n, bits);
        for (int64_t c = 0; c < n; ++c) {
          dxr[c] = bits[c] < args.mask.threshold ? T(0) : dzr[c] * scale;
        }
      } else {
        for (int64_t c = 0; c < n; ++c) dxr[c] = dzr[c];
      }
    }
  }
  if (dweight == nullptr) return;
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < n; ++c) {
    T dw = 0, db = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      dw += partial[chunk * 2 * n + c];
      db += partial[chunk * 2 * n + n + c];
    }
    dweight[c] += dw;
    dbias[c] += db;
  }
}

}  // namespace

template <>
const LayerNormKernels& TableOf<LayerNormKernels, LATHE_ISA>() {
  static constexpr LayerNormKernels table = {{Forward<float>, Backward<float>},
                                             {Forward<double>, Backward<double>}};
  return table;
}

}  // namespace lathe::cpu
