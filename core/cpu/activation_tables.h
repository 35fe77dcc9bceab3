// Tables of activation functions of bfloat16. It has only 65,536 values, so without AVX512-BF16
// looking up a result takes a fraction of the time of computing and rounding it.
//
// Each table is made by the functions that it replaces, when it is first used. So its results are
// theirs, bit for bit (NaN stays NaN, but may have other bits). What a layer looks up lies mostly
// in the first cache: numbers of a few magnitudes have some 4,000 values.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include "lathe/core/cpu/activation_lanes.h"

namespace lathe::cpu {
namespace {

// True if results of Act are looked up. ReLU and its variants take less time to compute.
template <typename Act, typename T>
constexpr bool kLooksUp =
    !kRoundsInOneInstruction && std::is_same_v<T, BFloat16> &&
    !(std::is_same_v<Act, Functions::Identity> || std::is_same_v<Act, Functions::Relu> ||
      std::is_same_v<Act, Functions::Relu2> || std::is_same_v<Act, Functions::Relu6> ||
      std::is_same_v<Act, Functions::LeakyRelu>);

constexpr int64_t kBFloat16Values = 1 << 16;

// Calls f(begin, x) for each part of all values of bfloat16, x: (kActivationPart), in the order of
// their bits.
template <typename F>
void ForAllValues(const F& f) {
  for (int64_t begin = 0; begin < kBFloat16Values; begin += kActivationPart) {
    BFloat16 x[kActivationPart];
    for (int64_t i = 0; i < kActivationPart; ++i) x[i].bits = static_cast<uint16_t>(begin + i);
    f(begin, x);
  }
}

// y: (n) = a * b; y may be b. A template, since not every level uses it.
template <typename T>
[[gnu::always_inline]] inline void Multiply(T* y, const float* a, const T* b, int64_t n) {
  StoreEachLanes(
      y, n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
        return LoadLanes(a + i, which) * LoadLanes(b + i, which);
      });
}

// The values as V: BFloat16, or float for what computes on with them.
template <typename Act, typename V = BFloat16>
class ActivationValues {
 public:
  static const ActivationValues& Get() {
    static const ActivationValues table;
    return table;
  }

  // y: (n) = act(x); y may be x.
  void Values(V* y, const BFloat16* x, int64_t n) const {
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; ++i) y[i] = values_[x[i].bits];
  }

 private:
  ActivationValues() {
    ForAllValues([&](int64_t begin, const BFloat16* x) {
      V wide[kActivationPart];
      for (int64_t i = 0; i < kActivationPart; ++i) Store(wide[i], Load(x[i]));
      cpu::Values<Act>(values_ + begin, wide, kActivationPart);
    });
  }

  V values_[kBFloat16Values];
};

// The derivatives, and the values that are computed with them, as V.
template <typename Act, typename V = BFloat16>
class ActivationDerivatives {
 public:
  static const ActivationDerivatives& Get() {
    static const ActivationDerivatives table;
    return table;
  }

  // dx: (n) = dy * act'(x); dx may be dy. n is at most kActivationPart.
  void Gradients(BFloat16* dx, const BFloat16* dy, const BFloat16* x, int64_t n) const {
    float derivatives[kActivationPart];
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; ++i) derivatives[i] = derivatives_[x[i].bits];
    Multiply(dx, derivatives, dy, n);
  }

  // Also sets y: (n) = act(x).
  void GradientsAndValues(BFloat16* dx, BFloat16* y, const BFloat16* dy, const BFloat16* x,
                          int64_t n) const {
    float derivatives[kActivationPart];
    Both(derivatives, y, x, n);
    Multiply(dx, derivatives, dy, n);
  }

  // derivatives: (n) = act'(x) and y: (n) = act(x).
  void Both(float* derivatives, V* y, const BFloat16* x, int64_t n) const {
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t bits = x[i].bits;
      derivatives[i] = derivatives_[bits];
      y[i] = values_[bits];
    }
  }

 private:
  ActivationDerivatives() {
    ForAllValues([&](int64_t begin, const BFloat16* x) {
      float wide[kActivationPart], ones[kActivationPart], values[kActivationPart];
      for (int64_t i = 0; i < kActivationPart; ++i) {
        wide[i] = Load(x[i]);
        ones[i] = 1;
      }
      cpu::GradientsAndValues<Act>(derivatives_ + begin, values, ones, wide, kActivationPart);
      for (int64_t i = 0; i < kActivationPart; ++i) Store(values_[begin + i], values[i]);
    });
  }

  float derivatives_[kBFloat16Values];
  V values_[kBFloat16Values];
};

}  // namespace
}  // namespace lathe::cpu
