// Vectorisable elementary functions for kernels. Everything is always inlined, because kernels
// include this at several instruction set levels.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lathe::cpu {

// e^x by range reduction to |r| <= ln(2)/2 and the Taylor polynomial of degree 7 (relative error
// below 2e-7). Below -87 the result stays at e^-87; NaN stays NaN.
[[gnu::always_inline]] inline float ExpUpTo88(float x) {
  x = x < -87.0f ? -87.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}
[[gnu::always_inline]] inline float Exp(float x) { return ExpUpTo88(x > 88.0f ? 88.0f : x); }
[[gnu::always_inline]] inline double Exp(double x) { return std::exp(x); }

// A rational function fitted to erf(x)/x on [-3.92, 3.92] (own least-squares fit, relative error
// below 1e-7); beyond that erf is 1 in float.
[[gnu::always_inline]] inline float Erf(float x) {
  x = x < -3.92f ? -3.92f : x;
  x = x > 3.92f ? 3.92f : x;
  const float t = x * x;
  float p = 2.0480392745857464e-08f;
  p = p * t - 1.947230554051403e-06f;
  p = p * t + 0.0001337971880599297f;
  p = p * t + 0.0033322170146661044f;
  p = p * t + 0.049376953548270354f;
  p = p * t + 0.19105118353149456f;
  p = p * t + 1.1283791388924151f;
  float q = 0.0008693314647066107f;
  q = q * t + 0.013590806429535498f;
  q = q * t + 0.11131326063251258f;
  q = q * t + 0.5026472030522513f;
  q = q * t + 1.0f;
  return x * p / q;
}
[[gnu::always_inline]] inline double Erf(double x) { return std::erf(x); }

template <typename T>
[[gnu::always_inline]] inline T Tanh(T x) {
  const T e = Exp(T(-2) * (x < 0 ? -x : x));
  const T magnitude = (T(1) - e) / (T(1) + e);
  return x < 0 ? -magnitude : magnitude;
}
// The float form loses digits near 0, where tanh is its argument; the library's does not.
template <>
[[gnu::always_inline]] inline double Tanh(double x) {
  return std::tanh(x);
}

}  // namespace lathe::cpu
