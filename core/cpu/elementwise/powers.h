// ln(x) of registers of float32, and powers of float32 that are computed in double. All special
// numbers give what the standard library's functions give.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <utility>

#include "lathe/core/cpu/full_range.h"
#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

// With x = 2^n (1 + f) and 1 + f from sqrt(1/2) to sqrt(2), it is n ln 2 + f - f^2 / 2 + f^3 P(f).
// P is an own least-squares fit. The error is below a unit of the last place.
[[gnu::always_inline]] inline Lanes<float> LogOfAny(Lanes<float> x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int32_t kSqrtHalf = 0x3f3504f3;  // the bits of sqrt(1/2)
  const Lanes<float> zero = {};
  const auto subnormal = x < 0x1p-126f;
  const LanesOfInts bits = (LanesOfInts)(subnormal ? x * 0x1p23f : x);
  const LanesOfInts exponent = (bits - kSqrtHalf) >> 23;
  const Lanes<float> f = (Lanes<float>)(bits - (exponent << 23)) - 1.0f;
  const Lanes<float> n =
      __builtin_convertvector(exponent, Lanes<float>) - (subnormal ? zero + 23.0f : zero);
  Lanes<float> p = f * -0.06610097736120224f + 0.12188895791769028f;
  p = p * f - 0.13303391635417938f;
  p = p * f + 0.14304786920547485f;
  p = p * f - 0.16618098318576813f;
  p = p * f + 0.19995449483394623f;
  p = p * f - 0.25000855326652527f;
  p = p * f + 0.3333342969417572f;
  const Lanes<float> square = f * f;
  // ln 2 in two parts, of which the first one times n is exact.
  const Lanes<float> rest = (f * square * p + n * -2.12194440e-4f) - 0.5f * square;
  Lanes<float> log = (f + rest) + n * 0.693359375f;
  log = x == kInfinity ? x : log;
  log = x == 0.0f ? zero - kInfinity : log;
  return x >= 0.0f ? log : zero + std::numeric_limits<float>::quiet_NaN();
}

typedef uint64_t LanesOfWords __attribute__((vector_size(kRegisterBytes)));
constexpr double kRoundDouble = 0x1.8p52;  // adding it rounds to an integer

// Returns log2 |x| for x that float32 holds, with a relative error below 1e-11.
[[gnu::always_inline]] inline Lanes<double> Log2OfSize(Lanes<double> x) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr uint64_t kOne = uint64_t{1023} << 52, kSqrtHalf = 0x3fe6a09e667f3bcd;
  const LanesOfWords bits = (LanesOfWords)x & ~(uint64_t{1} << 63);
  const LanesOfWords exponent = (bits + (kOne - kSqrtHalf)) >> 52;  // plus 1023
  const Lanes<double> m = (Lanes<double>)(bits - (exponent << 52) + kOne);
  // The bits of a whole number that is added to 2^52.
  const Lanes<double> n = (Lanes<double>)(exponent | uint64_t{0x433} << 52) - (0x1p52 + 1023);
  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| <= 0.1716
  const Lanes<double> s = (m - 1.0) / (m + 1.0), z = s * s;
  Lanes<double> p = z * (1.0 / 13) + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1.0;
  Lanes<double> log = n + s * p * (2 / std::numbers::ln2);
  const Lanes<double> size = (Lanes<double>)bits;
  log = size == 0.0 ? Lanes<double>{} - kInfinity : log;
  return size < kInfinity ? log : size;  // infinity and NaN
}

// Returns 2^t, with a relative error below 3e-10. It is infinity or 0 where float32 holds no other
// number, so that products with infinity or 0 are what they are in float32.
[[gnu::always_inline]] inline Lanes<double> Exp2InFloatRange(Lanes<double> t) {
  // The last line gives infinity for 1024 and 0 for -1023.
  t = t >= 128.0 ? Lanes<double>{} + 1024.0 : t;
  t = t <= -150.0 ? Lanes<double>{} - 1023.0 : t;
  const Lanes<double> rounded = t + kRoundDouble;
  const Lanes<double> r = (t - (rounded - kRoundDouble)) * std::numbers::ln2;
  Lanes<double> p = r * (1.0 / 40320) + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The lowest bits of `rounded` are those of the integer; the shift makes a power of two of them.
  return p * (Lanes<double>)(((LanesOfWords)rounded + 1023) << 52);
}

// What an exponent p that float32 holds does with bases of either sign.
struct Exponent {
  [[gnu::always_inline]] explicit Exponent(Lanes<double> exponent) : p(exponent) {
    // From 2^24 on, all of float32 are even.
    const Lanes<double> most = Lanes<double>{} + 0x1p30;
    Lanes<double> limited = p > most ? most : p;
    limited = limited < -most ? -most : limited;
    const Lanes<double> half = limited * 0.5;
    const auto whole = (limited + kRoundDouble) - kRoundDouble == limited;
    const auto even = (half + kRoundDouble) - kRoundDouble == half;
    sign = (LanesOfWords)whole & ~(LanesOfWords)even & (uint64_t{1} << 63);
    of_negative =
        whole ? Lanes<double>{} + 1.0 : Lanes<double>{} + std::numeric_limits<double>::quiet_NaN();
  }
  Lanes<double> p;
  LanesOfWords sign;          // the sign's bit if p is odd, else 0
  Lanes<double> of_negative;  // 1 if p is whole, else NaN
};

// Returns x^p for x that float32 holds. p is not 0 unless kMayBeZero.
template <bool kMayBeZero>
[[gnu::always_inline]] inline Lanes<double> PowOfAny(Lanes<double> x, const Exponent& exponent) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Lanes<double> zero = {}, log = Log2OfSize(x);
  Lanes<double> product = exponent.p * log;
  if constexpr (kMayBeZero) product = exponent.p == 0.0 ? zero : product;
  const Lanes<double> size = Exp2InFloatRange(log == 0.0 ? zero : product);
  const LanesOfWords sign = (LanesOfWords)x & exponent.sign;
  const Lanes<double> power = (Lanes<double>)((LanesOfWords)size | sign);
  // Minus infinity has the powers of infinity, but for the sign.
  return power * (((x < 0.0) & (x > -kInfinity)) ? exponent.of_negative : zero + 1.0);
}

// As many floats as a register has doubles.
[[gnu::always_inline]] inline Lanes<double> LoadDoubles(const float* x) {
  typedef float Floats __attribute__((vector_size(kRegisterBytes / 2)));
  Floats floats;
  std::memcpy(&floats, x, sizeof(floats));
  return __builtin_convertvector(floats, Lanes<double>);
}
[[gnu::always_inline]] inline void StoreDoubles(float* to, Lanes<double> x) {
  typedef float Floats __attribute__((vector_size(kRegisterBytes / 2)));
  const Floats floats = __builtin_convertvector(x, Floats);
  std::memcpy(to, &floats, sizeof(floats));
}

// Sets y[i] to f of the operands' elements i, which f computes in double, for n elements. An
// operand is a pointer and its stride, 1 or 0. It may be y.
template <typename F, typename... Strides>
[[gnu::always_inline]] inline void ForDoubles(float* y, int64_t n, const F& f,
                                              std::pair<const float*, Strides>... operands) {
  constexpr int64_t kStep = kLanesOf<double>;
  const auto load = [](const float* x, auto stride, int64_t i) __attribute__((always_inline)) {
    if constexpr (decltype(stride)::value == 0)
      return double{*x} - Lanes<double>{};  // -0 stays -0
    else
      return LoadDoubles(x + i);
  };
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    StoreDoubles(y + i, f(load(operands.first, operands.second, i)...));
  if (i == n) return;
  float result[kStep];
  const auto load_rest = [=](const float* x, auto stride) __attribute__((always_inline)) {
    float rest[kStep] = {};
    std::memcpy(rest, decltype(stride)::value == 0 ? x : x + i,
                (decltype(stride)::value == 0 ? 1 : n - i) * sizeof(float));
    return load(rest, stride, 0);
  };
  StoreDoubles(result, f(load_rest(operands.first, operands.second)...));
  std::memcpy(y + i, result, (n - i) * sizeof(float));
}

}  // namespace
}  // namespace lathe::cpu
