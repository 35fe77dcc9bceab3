#include "lathe/core/cpu/layer_norm.h"

#include <cmath>

#include "lathe/core/cpu/row_bits.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kMaxColumns = 1 << 15;

int64_t Chunks(int64_t rows, int64_t) { return (rows + kLayerNormChunk - 1) / kLayerNormChunk; }

// z = dropout(x) + residual in M, one row.
template <typename T, typename M>
[[gnu::always_inline]] inline void Sum(M* z, const T* x, const T* residual, int64_t row,
                                       const LayerNormArgs& args) {
  const int64_t n = args.n;
  const M scale = static_cast<M>(args.mask.scale);
  if (args.mask.threshold > 0) {
    alignas(64) uint32_t bits[kMaxColumns];
    RowBits(args.mask.key0, args.mask.key1, args.mask.step,
            static_cast<uint32_t>(args.mask.row_samples[row]),
            static_cast<uint32_t>(args.mask.row_positions[row]), n, bits);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      z[c] = bits[c] < args.mask.threshold ? M(0) : Load(x[c]) * scale;
    }
  } else {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) z[c] = Load(x[c]);
  }
  if (residual == nullptr) return;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) z[c] += Load(residual[c]);
}

template <typename T, typename M>
void Forward(T* y, T* z, M* mean, M* rstd, const T* x, const T* residual, const M* weight,
             const M* bias, const LayerNormArgs& args) {
  const int64_t n = args.n;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    alignas(64) M row[kMaxColumns];
    Sum(row, x + r * n, residual == nullptr ? nullptr : residual + r * n, r, args);
    M sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; ++c) sum += row[c];
    const M m = sum / static_cast<M>(n);
    M squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < n; ++c) squares += (row[c] - m) * (row[c] - m);
    const M s = M(1) / std::sqrt(squares / static_cast<M>(n) + static_cast<M>(args.eps));
    mean[r] = m;
    rstd[r] = s;
    T* yr = y + r * n;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) Store(yr[c], (row[c] - m) * s * weight[c] + bias[c]);
    T* zr = z + r * n;
    if (zr == x + r * n) continue;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) Store(zr[c], row[c]);
  }
}

// With g = dy * weight and xhat = (z - mean) * rstd:
//   dz = rstd * (g - mean(g) - xhat * mean(g * xhat)); dweight = sum dy * xhat; dbias = sum dy.
template <typename T, typename M>
void Backward(T* dz, T* dx, M* dweight, M* dbias, M* partial, const T* dy, const T* z,
              const M* mean, const M* rstd, const M* weight, const LayerNormArgs& args) {
  const int64_t n = args.n;
  const int64_t chunks = Chunks(args.rows, n);
  const M scale = static_cast<M>(args.mask.scale);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    M* dw = partial + chunk * 2 * n;
    M* db = dw + n;
    for (int64_t c = 0; c < 2 * n; ++c) dw[c] = 0;
    const int64_t end =
        (chunk + 1) * kLayerNormChunk < args.rows ? (chunk + 1) * kLayerNormChunk : args.rows;
    for (int64_t r = chunk * kLayerNormChunk; r < end; ++r) {
      const T* dyr = dy + r * n;
      const T* zr = z + r * n;
      T* dzr = dz + r * n;
      const M m = mean[r], s = rstd[r];
      M sum_g = 0, sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
      for (int64_t c = 0; c < n; ++c) {
        const M xhat = (Load(zr[c]) - m) * s;
        const M d = Load(dyr[c]);
        const M g = d * weight[c];
        sum_g += g;
        sum_gx += g * xhat;
        dw[c] += d * xhat;
        db[c] += d;
      }
      sum_g /= static_cast<M>(n);
      sum_gx /= static_cast<M>(n);
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        Store(dzr[c], s * (Load(dyr[c]) * weight[c] - sum_g - (Load(zr[c]) - m) * s * sum_gx));
      }
      if (dx == nullptr) continue;
      T* dxr = dx + r * n;
      if (args.mask.threshold > 0) {
        alignas(64) uint32_t bits[kMaxColumns];
        RowBits(args.mask.key0, args.mask.key1, args.mask.step,
                static_cast<uint32_t>(args.mask.row_samples[r]),
                static_cast<uint32_t>(args.mask.row_positions[r]), n, bits);
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) {
          Store(dxr[c], bits[c] < args.mask.threshold ? M(0) : Load(dzr[c]) * scale);
        }
      } else {
        for (int64_t c = 0; c < n; ++c) dxr[c] = dzr[c];
      }
    }
  }
  if (dweight == nullptr) return;
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < n; ++c) {
    M dw = 0, db = 0;
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
  static constexpr LayerNormKernels table = {{Forward<float, float>, Backward<float, float>},
                                             {Forward<double, double>, Backward<double, double>},
                                             {Forward<BFloat16, float>, Backward<BFloat16, float>},
                                             {},
                                             Chunks};
  return table;
}

}  // namespace lathe::cpu
