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
  const auto value = [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
    Lanes<M> made = LoadLanes(x + c, which);
    if constexpr (drops) made = Kept<M>(made, bits + c, threshold, scale, which);
    if constexpr (adds) made += LoadLanes(residual + c, which);
    StoreLanes(z + c, made, which);
    sums[chain] += made;
    return made;
  };
  if (stored == x) {
    ForLanes<M>(args.n, value);
  } else {
    StoreEachLanes(stored, args.n, value);
  }
  return SumOfChains<M>(sums);
}

// Computes a row of y.
template <typename T, typename M>
[[gnu::always_inline]] inline void Normalize(T* y, const M* z, M mean, M rstd, const M* weight,
                                             const M* bias, int64_t n) {
  StoreEachLanes(
      y, n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
        const Lanes<M> xhat = (LoadLanes(z + c, which) - mean) * rstd;
        return xhat * LoadLanes(weight + c, which) + LoadLanes(bias + c, which);
      });
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
    Normalize(y + r * n, row, m, s, weight, bias, n);
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

// The mean of g and of g * xhat over a row (see Backward).
template <typename M>
struct RowMeans {
  M g, gx;
};

// Adds what a row adds to the gradients of the weight and the bias, and returns the row's means.
template <typename T, typename M>
[[gnu::always_inline]] inline RowMeans<M> AddParameterGradients(M* dweight, M* dbias, const T* dy,
                                                                const T* z, M mean, M rstd,
                                                                const M* weight, int64_t n) {
  Lanes<M> gs[kChains] = {}, gxs[kChains] = {};
  ForLanes<M>(
      n, [&](int64_t c, int chain, auto which) __attribute__((always_inline)) {
        const Lanes<M> xhat = (LoadLanes(z + c, which) - mean) * rstd, d = LoadLanes(dy + c, which);
        const Lanes<M> g = d * LoadLanes(weight + c, which);
        gs[chain] += g;
        gxs[chain] += g * xhat;
        StoreLanes(dweight + c, LoadLanes(dweight + c, which) + d * xhat, which);
        StoreLanes(dbias + c, LoadLanes(dbias + c, which) + d, which);
      });
  return {SumOfChains<M>(gs) / static_cast<M>(n), SumOfChains<M>(gxs) / static_cast<M>(n)};
}

// Computes a row of dz.
template <typename T, typename M>
[[gnu::always_inline]] inline void InputGradients(T* dz, const T* dy, const T* z, M mean, M rstd,
                                                  const M* weight, RowMeans<M> means, int64_t n) {
  const M from_z = -rstd * (rstd * means.gx), from_all = -rstd * means.g;
  StoreEachLanes(
      dz, n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
        const Lanes<M> g = LoadLanes(dy + c, which) * LoadLanes(weight + c, which);
        return g * rstd + ((LoadLanes(z + c, which) - mean) * from_z + from_all);
      });
}

// Computes a row of dx = dz * mask * scale.
template <typename T, typename M>
[[gnu::always_inline]] inline void DropGradients(T* dx, const T* dz, int64_t row,
                                                 const LayerNormArgs& args) {
  const M scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  if (threshold == 0) {
    std::memcpy(dx, dz, static_cast<size_t>(args.n) * sizeof(T));
    return;
  }
  alignas(64) uint32_t bits[kMaxColumns];
  MaskBits(bits, row, args);
  StoreEachLanes(
      dx, args.n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
        return Kept<M>(LoadLanes(dz + c, which), bits + c, threshold, scale, which);
      });
}

// With g = dy * weight and xhat = (z - mean) * rstd:
//   dz = rstd * (g - mean(g) - xhat * mean(g * xhat)); dweight = sum dy * xhat; dbias = sum dy.
template <typename T, typename M>
void Backward(T* dz, T* dx, M* dweight, M* dbias, M* partial, const T* dy, const T* z,
              const M* mean, const M* rstd, const M* weight, const LayerNormArgs& args) {
  const int64_t n = args.n;
  const int64_t chunks = Chunks(args.rows, n);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    M* const dw = partial + chunk * 2 * n;
    M* const db = dw + n;
    for (int64_t c = 0; c < 2 * n; ++c) dw[c] = 0;
    const int64_t end =
        (chunk + 1) * kLayerNormChunk < args.rows ? (chunk + 1) * kLayerNormChunk : args.rows;
    for (int64_t r = chunk * kLayerNormChunk; r < end; ++r) {
      const T *const dyr = dy + r * n, *const zr = z + r * n;
      const RowMeans<M> means = AddParameterGradients(dw, db, dyr, zr, mean[r], rstd[r], weight, n);
      InputGradients(dz + r * n, dyr, zr, mean[r], rstd[r], weight, means, n);
      if (dx != nullptr) DropGradients<T, M>(dx + r * n, dz + r * n, r, args);
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
