// Elementary functions for kernels: of single numbers, for loops that compilers vectorise, and of
// registers of numbers. Only kernel sources include this header; they are compiled once for each
// instruction set level, so everything is always inlined.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {

// The type of the bits of V, which is float or a register of floats.
template <typename V>
struct BitsOf {
  typedef uint32_t type __attribute__((vector_size(sizeof(V))));
};
template <>
struct BitsOf<float> {
  typedef uint32_t type;
};

// e^x for x up to 88, by range reduction to |r| <= ln(2)/2 and the Taylor polynomial of degree 7.
// The relative error is below 2e-7. Below -87 the result stays at e^-87; NaN stays NaN.
template <typename V>
[[gnu::always_inline]] inline V ExpUpTo88(V x) {
  using Bits = typename BitsOf<V>::type;
  x = AtLeast(V{} - 87.0f, x);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V rounded = x * 1.44269504f + kRound, n = rounded - kRound;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The lowest bits of `rounded` are those of n; the shift makes 2^n of them.
  return p * std::bit_cast<V>((std::bit_cast<Bits>(rounded) << 23) + (127u << 23));
}
[[gnu::always_inline]] inline float Exp(float x) { return ExpUpTo88(AtMost(88.0f, x)); }
[[gnu::always_inline]] inline double Exp(double x) { return std::exp(x); }
[[gnu::always_inline]] inline Lanes<float> Exp(Lanes<float> x) {
  return ExpUpTo88(AtMost(Lanes<float>{} + 88.0f, x));
}
[[gnu::always_inline]] inline Lanes<double> Exp(Lanes<double> x) {
  for (int64_t i = 0; i < kLanesOf<double>; ++i) x[i] = std::exp(x[i]);
  return x;
}

// Returns 1 / x within two units of the last place; x is at least 2^-125 and below 2^126.
[[gnu::always_inline]] inline Lanes<float> Reciprocal(Lanes<float> x) {
#if LATHE_ISA >= 4
  // An estimate of 14 bits; one step of Newton's method doubles them.
  const Lanes<float> guess = (Lanes<float>)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)x);
  return guess * (2.0f - x * guess);
#else
  return 1.0f / x;
#endif
}

// erf(x) by a rational function fitted to erf(x)/x on [-3.92, 3.92] (own least-squares fit,
// relative error below 1e-7). Beyond that range |erf(x)| is 1 in float.
[[gnu::always_inline]] inline Lanes<float> Erf(Lanes<float> x) {
  const Lanes<float> most = Lanes<float>{} + 3.92f;
  x = AtMost(most, AtLeast(-most, x));
  const Lanes<float> t = x * x;
  Lanes<float> p = t * 2.0480392745857464e-08f - 1.947230554051403e-06f;
  p = p * t + 0.0001337971880599297f;
  p = p * t + 0.0033322170146661044f;
  p = p * t + 0.049376953548270354f;
  p = p * t + 0.19105118353149456f;
  p = p * t + 1.1283791388924151f;
  Lanes<float> q = t * 0.0008693314647066107f + 0.013590806429535498f;
  q = q * t + 0.11131326063251258f;
  q = q * t + 0.5026472030522513f;
  q = q * t + 1.0f;
  const Lanes<float> erf = x * p * Reciprocal(q);
  // The ends are exactly 1 and -1; a reciprocal that is a little too small would miss them.
  return x == most ? Lanes<float>{} + 1.0f : x == -most ? Lanes<float>{} - 1.0f : erf;
}
[[gnu::always_inline]] inline double Erf(double x) { return std::erf(x); }

template <typename T>
[[gnu::always_inline]] inline T Tanh(T x) {
  const T e = Exp(T(-2) * (x < 0 ? -x : x));
  const T magnitude = (T(1) - e) / (T(1) + e);
  return x < 0 ? -magnitude : magnitude;
}
// In double the library computes it. The form above loses digits near 0, where tanh(x) is close to
// x.
template <>
[[gnu::always_inline]] inline double Tanh(double x) {
  return std::tanh(x);
}

}  // namespace lathe::cpu
