#include "lathe/core/cpu/layer_norm.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/dropout_bits.h"
#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kMaxColumns = 1 << 15;

int64_t Chunks(int64_t rows, int64_t) { return DivideUp(rows, kLayerNormChunk); }

// Returns x * scale where the bits of a dropout mask keep the element, and 0 elsewhere.
template <typename M, typename Which>
[[gnu::always_inline]] inline Lanes<M> Kept(Lanes<M> x, const uint32_t* bits, uint32_t threshold,
                                            M scale, Which which) {
  typedef std::conditional_t<sizeof(M) == 8, int64_t, int32_t> Flag;
  if constexpr (std::is_same_v<M, float> && std::is_same_v<Which, AllLanes>) {
    typedef uint32_t Words __attribute__((vector_size(kRegisterBytes)));
    Words words;
    std::memcpy(&words, bits, sizeof(words));
    return words < threshold ? Lanes<M>{} : x * scale;
  } else {
    typedef Flag Flags __attribute__((vector_size(kRegisterBytes)));
    Flags dropped = {};
    int64_t n = kLanesOf<M>;
    if constexpr (std::is_same_v<Which, FirstLanes>) n = which.n;
    for (int64_t i = 0; i < n; ++i) dropped[i] = bits[i] < threshold ? -1 : 0;
    return dropped ? Lanes<M>{} : x * scale;
  }
}

[[gnu::always_inline]] inline void MaskBits(uint32_t* bits, int64_t row,
                                            const LayerNormArgs& args) {
  DropoutBitsOfRow(args.mask.key0, args.mask.key1, args.mask.step,
                   static_cast<uint32_t>(args.mask.row_samples[row]),
                   static_cast<uint32_t>(args.mask.row_positions[row]), args.n, bits);
}

// Computes one row of z = dropout(x) + residual in M and returns its sum. Also stores the row in
// `stored`, unless that is x.
template <bool drops, bool adds, typename T, typename M>
[[gnu::always_inline]] inline M Sum(M* z, T* stored, const T* x, const T* residual, int64_t row,
                                    const LayerNormArgs& args) {
  const M scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  alignas(64) uint32_t bits[drops ? kMaxColumns : 1];
  if constexpr (drops) MaskBits(bits, row, args);
  Lanes<M> sums[kChains] = {};
  ForLanes<M>(
      args.n, [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
        Lanes<M> value = LoadLanes(x + c, which);
        if constexpr (drops) value = Kept<M>(value, bits + c, threshold, scale, which);
        if constexpr (adds) value += LoadLanes(residual + c, which);
        StoreLanes(z + c, value, which);
        if (stored != x) StoreLanes(stored + c, value, which);
        sums[chain] += value;
      });
  return SumOfChains<M>(sums);
}

template <bool drops, bool adds, typename T, typename M>
void ForwardRows(T* y, T* z, M* mean, M* rstd, const T* x, const T* residual, const M* weight,
                 const M* bias, const LayerNormArgs& args) {
  const int64_t n = args.n;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    alignas(64) M row[kMaxColumns];
    const M m =
        Sum<drops, adds>(row, z + r * n, x + r * n, residual + (adds ? r * n : 0), r, args) /
        static_cast<M>(n);
    Lanes<M> squares[kChains] = {};
    ForLanes<M>(
        n, [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
          Lanes<M> away = LoadLanes(row + c, which) - m;
          if constexpr (std::is_same_v<decltype(which), FirstLanes>) {
            for (int64_t i = which.n; i < kLanesOf<M>; ++i) away[i] = 0;
          }
          squares[chain] += away * away;
        });
    const M sum = SumOfChains<M>(squares);
    const M s = M(1) / std::sqrt(sum / static_cast<M>(n) + static_cast<M>(args.eps));
    mean[r] = m;
    rstd[r] = s;
    T* const yr = y + r * n;
    ForLanes<M>(
        n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
          const Lanes<M> xhat = (LoadLanes(row + c, which) - m) * s;
          StoreLanes(yr + c, xhat * LoadLanes(weight + c, which) + LoadLanes(bias + c, which),
                     which);
        });
  }
}

template <typename T, typename M>
void Forward(T* y, T* z, M* mean, M* rstd, const T* x, const T* residual, const M* weight,
             const M* bias, const LayerNormArgs& args) {
  const auto forward =
      args.mask.threshold > 0
          ? residual != nullptr ? ForwardRows<true, true, T, M> : ForwardRows<true, false, T, M>
      : residual != nullptr ? ForwardRows<false, true, T, M>
                            : ForwardRows<false, false, T, M>;
  forward(y, z, mean, rstd, x, residual, weight, bias, args);
}

// With g = dy * weight and xhat = (z - mean) * rstd:
//   dz = rstd * (g - mean(g) - xhat * mean(g * xhat)); dweight = sum dy * xhat; dbias = sum dy.
template <typename T, typename M>
void Backward(T* dz, T* dx, M* dweight, M* dbias, M* partial, const T* dy, const T* z,
              const M* mean, const M* rstd, const M* weight, const LayerNormArgs& args) {
  const int64_t n = args.n;
  const int64_t chunks = Chunks(args.rows, n);
  const M scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    M* dw = partial + chunk * 2 * n;
    M* db = dw + n;
    for (int64_t c = 0; c < 2 * n; ++c) dw[c] = 0;
    const int64_t end =
        (chunk + 1) * kLayerNormChunk < args.rows ? (chunk + 1) * kLayerNormChunk : args.rows;
    for (int64_t r = chunk * kLayerNormChunk; r < end; ++r) {
      const T *const dyr = dy + r * n, *const zr = z + r * n;
      const M m = mean[r], s = rstd[r];
      Lanes<M> gs[kChains] = {}, gxs[kChains] = {};
      ForLanes<M>(
          n, [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
            const Lanes<M> xhat = (LoadLanes(zr + c, which) - m) * s, d = LoadLanes(dyr + c, which);
            const Lanes<M> g = d * LoadLanes(weight + c, which);
            gs[chain] += g;
            gxs[chain] += g * xhat;
            StoreLanes(dw + c, LoadLanes(dw + c, which) + d * xhat, which);
            StoreLanes(db + c, LoadLanes(db + c, which) + d, which);
          });
      const M mean_g = SumOfChains<M>(gs) / static_cast<M>(n);
      const M mean_gx = SumOfChains<M>(gxs) / static_cast<M>(n);
      const M from_z = -s * (s * mean_gx), from_all = -s * mean_g;
      const auto gradient = [&](int64_t c, auto which) __attribute__((always_inline)) {
        const Lanes<M> g = LoadLanes(dyr + c, which) * LoadLanes(weight + c, which);
        return g * s + ((LoadLanes(zr + c, which) - m) * from_z + from_all);
      };
      T* const dzr = dz + r * n;
      ForLanes<M>(
          n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
            StoreLanes(dzr + c, gradient(c, which), which);
          });
      if (dx == nullptr) continue;
      T* const dxr = dx + r * n;
      if (threshold == 0) {
        std::memcpy(dxr, dzr, static_cast<size_t>(n) * sizeof(T));
        continue;
      }
      alignas(64) uint32_t bits[kMaxColumns];
      MaskBits(bits, r, args);
      ForLanes<M>(
          n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
            const Lanes<M> value = LoadLanes(dzr + c, which);
            StoreLanes(dxr + c, Kept<M>(value, bits + c, threshold, scale, which), which);
          });
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
