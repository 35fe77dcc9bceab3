// Activation functions for the host's kernels: of single numbers, of arrays, and GELU of whole
// registers.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <type_traits>

#include "lathe/core/cpu/math.h"
#include "lathe/core/kernels/activation_functions.h"

namespace lathe::cpu {
namespace {

struct HostMath {
  template <typename T>
  [[gnu::always_inline]] static T Exp(T x) {
    return cpu::Exp(x);
  }
  template <typename T>
  [[gnu::always_inline]] static T Erf(T x) {
    return cpu::Erf(x);
  }
  template <typename T>
  [[gnu::always_inline]] static T Tanh(T x) {
    return cpu::Tanh(x);
  }
  template <typename T>
  static constexpr T kGeluNewSlope = T(3 * kGeluNewCubic);
};
using Functions = ActivationFunctions<HostMath>;

// Returns GELU's value and sets `derivative`. erf is computed with e^(-x^2/2), which the
// derivative's other term needs as well. Source: Abramowitz and Stegun, Handbook of Mathematical
// Functions, 7.1.26; the error is within 2e-7.
[[gnu::always_inline]] inline Lanes<float> GeluBoth(Lanes<float> x, Lanes<float>* derivative) {
  using Bits = BitsOf<Lanes<float>>::type;
  const Bits sign = (Bits)x & 0x80000000u;
  const Lanes<float> size = (Lanes<float>)((Bits)x ^ sign), most = Lanes<float>{} + 1e4f;
  const Lanes<float> e = ExpUpTo88(-0.5f * x * x);
  // The factor is 0.3275911 / sqrt(2). `size` is capped because Reciprocal doesn't take infinity.
  const Lanes<float> t = Reciprocal(1.0f + 0.23164189f * (size > most ? most : size));
  Lanes<float> p = t * 0.5307027146f - 0.7265760136f;  // coefficients are half the source's
  p = p * t + 0.7107068706f;
  p = p * t - 0.142248368f;
  p = p * t + 0.127414796f;
  const Lanes<float> within = 0.5f - p * t * e;  // the normal density's integral from 0 to |x|
  const Lanes<float> part = 0.5f + (Lanes<float>)((Bits)within | sign);
  *derivative = part + x * 0.39894228f * e;
  return x * part;
}

// Returns the value alone: x/2 (1 + erf(x / sqrt(2))).
[[gnu::always_inline]] inline Lanes<float> GeluValue(Lanes<float> x) {
  const Lanes<float> half = x * 0.5f;
  const Lanes<float> erf = Erf(half * 1.41421356f);
  return half + half * erf;
}

// True if the activation is computed in whole registers: Gelu and Gelu10 of float32 and bfloat16.
template <typename Act, typename T>
constexpr bool kInLanes = std::is_same_v<MathType<T>, float> &&
                          (std::is_same_v<Act, Functions::Gelu> ||
                           std::is_same_v<Act, Functions::Gelu10>);

// Return what Act makes of Gelu's value, or of its derivative at x.
template <typename Act>
[[gnu::always_inline]] inline Lanes<float> CutValue(Lanes<float> value) {
  if constexpr (std::is_same_v<Act, Functions::Gelu10>) {
    return AtMost(Lanes<float>{} + Act::kMost, value);
  }
  return value;
}
template <typename Act>
[[gnu::always_inline]] inline Lanes<float> CutDerivative(Lanes<float> derivative, Lanes<float> x) {
  if constexpr (std::is_same_v<Act, Functions::Gelu10>) {
    return x >= Lanes<float>{} + Act::kMost ? Lanes<float>{} : derivative;
  }
  return derivative;
}

constexpr int64_t kActivationPart = 1024;  // the most elements that a thread takes at a time

// y: (n) = act(x); y may be x.
template <typename Act, typename T>
[[gnu::always_inline]] inline void Values(T* y, const T* x, int64_t n) {
  if constexpr (kInLanes<Act, T>) {
    ForLanes<float>(
        n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          StoreLanes(y + i, CutValue<Act>(GeluValue(LoadLanes(x + i, which))), which);
        });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) Store(y[i], Act::Value(Load(x[i])));
  }
}

// dx: (n) = dy * act'(x); dx may be dy.
template <typename Act, typename T>
[[gnu::always_inline]] inline void Gradients(T* dx, const T* dy, const T* x, int64_t n) {
  if constexpr (kInLanes<Act, T>) {
    ForLanes<float>(
        n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          Lanes<float> derivative;
          const Lanes<float> at = LoadLanes(x + i, which);
          GeluBoth(at, &derivative);
          derivative = CutDerivative<Act>(derivative, at);
          StoreLanes(dx + i, LoadLanes(dy + i, which) * derivative, which);
        });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) Store(dx[i], Load(dy[i]) * Act::Derivative(Load(x[i])));
  }
}

// Does both.
template <typename Act, typename T>
[[gnu::always_inline]] inline void GradientsAndValues(T* dx, T* y, const T* dy, const T* x,
                                                      int64_t n) {
  if constexpr (kInLanes<Act, T>) {
    ForLanes<float>(
        n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          Lanes<float> derivative;
          const Lanes<float> at = LoadLanes(x + i, which);
          const Lanes<float> value = CutValue<Act>(GeluBoth(at, &derivative));
          derivative = CutDerivative<Act>(derivative, at);
          const Lanes<float> gradient = LoadLanes(dy + i, which) * derivative;
          StoreLanes(y + i, value, which);
          StoreLanes(dx + i, gradient, which);
        });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const MathType<T> at = Load(x[i]);
      Store(y[i], Act::Value(at));
      Store(dx[i], Load(dy[i]) * Act::Derivative(at));
    }
  }
}

}  // namespace
}  // namespace lathe::cpu
