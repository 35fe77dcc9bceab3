#include "lathe/core/cpu/norm/rms_norm.h"

#include <cmath>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kChunk = 32;  // rows of a part

int64_t Chunks(int64_t rows, int64_t) { return DivideUp(rows, kChunk); }

template <typename T, typename M>
void Forward(T* y, M* rstd, const T* x, const M* weight, const RmsNormArgs& args) {
  const int64_t n = args.n;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* const xr = x + r * n;
    Lanes<M> squares[kChains] = {};
    ForLanes<M>(
        n, [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
          const Lanes<M> value = LoadLanes(xr + c, which);
          squares[chain] += value * value;
        });
    const M mean = SumOfChains<M>(squares) / static_cast<M>(n);
    const M s = M(1) / std::sqrt(mean + static_cast<M>(args.eps));
    rstd[r] = s;
    StoreEachLanes(
        y + r * n, n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
          return LoadLanes(xr + c, which) * s * LoadLanes(weight + c, which);
        });
  }
}

// With g = dy * weight and xhat = x * rstd:
//   dx = rstd * (g - xhat * mean(g * xhat));  dweight = sum dy * xhat
template <typename T, typename M>
void Backward(T* dx, M* dweight, M* partial, const T* dy, const T* x, const M* rstd,
              const M* weight, const RmsNormArgs& args) {
  const int64_t n = args.n, chunks = Chunks(args.rows, n);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    M* const dw = partial + chunk * n;
    for (int64_t c = 0; c < n; ++c) dw[c] = 0;
    const int64_t end = (chunk + 1) * kChunk < args.rows ? (chunk + 1) * kChunk : args.rows;
    for (int64_t r = chunk * kChunk; r < end; ++r) {
      const T *const dyr = dy + r * n, *const xr = x + r * n;
      const M s = rstd[r];
      Lanes<M> sums[kChains] = {};
      ForLanes<M>(
          n, [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
            const Lanes<M> xhat = LoadLanes(xr + c, which) * s, d = LoadLanes(dyr + c, which);
            sums[chain] += d * LoadLanes(weight + c, which) * xhat;
            StoreLanes(dw + c, LoadLanes(dw + c, which) + d * xhat, which);
          });
      const M from_x = -s * s * (SumOfChains<M>(sums) / static_cast<M>(n));
      StoreEachLanes(
          dx + r * n, n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
            const Lanes<M> g = LoadLanes(dyr + c, which) * LoadLanes(weight + c, which);
            return g * s + LoadLanes(xr + c, which) * from_x;
          });
    }
  }
  if (dweight == nullptr) return;
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < n; ++c) {
    M sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * n + c];
    dweight[c] += sum;
  }
}

}  // namespace

template <>
const RmsNormKernels& TableOf<RmsNormKernels, LATHE_ISA>() {
  static constexpr RmsNormKernels table = {{Forward<float, float>, Backward<float, float>},
                                           {Forward<double, double>, Backward<double, double>},
                                           {Forward<BFloat16, float>, Backward<BFloat16, float>},
                                           {},
                                           Chunks};
  return table;
}

}  // namespace lathe::cpu
