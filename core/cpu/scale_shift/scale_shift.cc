#include "lathe/core/cpu/scale_shift/scale_shift.h"

#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kChunk = 32;  // rows of a part

int64_t Chunks(int64_t rows, int64_t) { return DivideUp(rows, kChunk); }

template <bool adds, typename T, typename M>
void ForwardRows(T* y, T* z, const T* x, const T* residual, const M* weight, const M* bias,
                 int64_t rows, int64_t n) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    T *const yr = y + r * n, *const zr = z + (adds ? r * n : 0);
    const T *const xr = x + r * n, *const added = residual + (adds ? r * n : 0);
    ForLanesAndRest<M>(
        n, [&](int64_t c, auto which) __attribute__((always_inline)) {
          auto value = LoadLanes(xr + c, which);
          if constexpr (adds) {
            value += LoadLanes(added + c, which);
            StoreLanes(zr + c, value, which);
          }
          StoreLanes(yr + c, value * LoadLanes(weight + c, which) + LoadLanes(bias + c, which),
                     which);
        });
  }
}

template <typename T, typename M>
void Forward(T* y, T* z, const T* x, const T* residual, const M* weight, const M* bias,
             int64_t rows, int64_t n) {
  const auto forward = residual != nullptr ? ForwardRows<true, T, M> : ForwardRows<false, T, M>;
  forward(y, z, x, residual, weight, bias, rows, n);
}

template <typename T, typename M>
void BackwardRows(T* dz, M* dweight, M* dbias, M* partial, const T* dy, const T* z, const M* weight,
                  int64_t rows, int64_t n) {
  const int64_t chunks = Chunks(rows, n);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    M* const dw = partial + chunk * 2 * n;
    M* const db = dw + n;
    for (int64_t c = 0; c < 2 * n; ++c) dw[c] = 0;
    const int64_t end = (chunk + 1) * kChunk < rows ? (chunk + 1) * kChunk : rows;
    for (int64_t r = chunk * kChunk; r < end; ++r) {
      const T *const dyr = dy + r * n, *const zr = z + r * n;
      T* const dzr = dz + r * n;
      ForLanesAndRest<M>(
          n, [&](int64_t c, auto which) __attribute__((always_inline)) {
            const auto d = LoadLanes(dyr + c, which);
            StoreLanes(dw + c, LoadLanes(dw + c, which) + d * LoadLanes(zr + c, which), which);
            StoreLanes(db + c, LoadLanes(db + c, which) + d, which);
            StoreLanes(dzr + c, d * LoadLanes(weight + c, which), which);
          });
    }
  }
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

template <typename T, typename M = MathType<T>>
constexpr ScaleShiftKernels::ForType<T> TableFor() {
  return {Forward<T, M>, BackwardRows<T, M>};
}

}  // namespace

template <>
const ScaleShiftKernels& TableOf<ScaleShiftKernels, LATHE_ISA>() {
  static constexpr ScaleShiftKernels table = {
      TableFor<float>(), TableFor<double>(), TableFor<BFloat16>(), {}, Chunks};
  return table;
}

}  // namespace lathe::cpu
