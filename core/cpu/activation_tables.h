// Tables of activation functions of bfloat16. It has only 65,536 values, so without AVX-512 looking
// up a result takes a fraction of the time of computing and rounding it.
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
    LATHE_ISA <= 3 && std::is_same_v<T, BFloat16> &&
    !(std::is_same_v<Act, Functions::Relu> || std::is_same_v<Act, Functions::Relu2> ||
      std::is_same_v<Act, Functions::Relu6> || std::is_same_v<Act, Functions::LeakyRelu>);

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

template <typename Act>
class ActivationValues {
 public:
  static const ActivationValues& Get() {
    static const ActivationValues table;
    return table;
  }

  // y: (n) = act(x); y may be x.
  void Values(BFloat16* y, const BFloat16* x, int64_t n) const {
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; ++i) y[i] = values_[x[i].bits];
  }

 private:
  ActivationValues() {
    ForAllValues([&](int64_t begin, const BFloat16* x) {
      cpu::Values<Act>(values_ + begin, x, kActivationPart);
    });
  }

  BFloat16 values_[kBFloat16Values];
};

// The derivatives, and the values that are computed with them.
template <typename Act>
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
    Multiply(dx, dy, derivatives, n);
  }

  // Also sets y: (n) = act(x).
  void GradientsAndValues(BFloat16* dx, BFloat16* y, const BFloat16* dy, const BFloat16* x,
                          int64_t n) const {
    float derivatives[kActivationPart];
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t bits = x[i].bits;
      derivatives[i] = derivatives_[bits];
      y[i] = values_[bits];
    }
    Multiply(dx, dy, derivatives, n);
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

  static void Multiply(BFloat16* dx, const BFloat16* dy, const float* derivatives, int64_t n) {
    StoreEachLanes(
        dx, n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          return LoadLanes(dy + i, which) * LoadLanes(derivatives + i, which);
        });
  }

  float derivatives_[kBFloat16Values];
  BFloat16 values_[kBFloat16Values];
};

}  // namespace
}  // namespace lathe::cpu
