// e^x and tanh(x) of registers of float32, for all x. The functions of math.h are faster, but stop
// at e^-87 or lose digits near 0.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

typedef int32_t LanesOfInts __attribute__((vector_size(kRegisterBytes)));

// Returns 2^n for n from -126 to 127.
[[gnu::always_inline]] inline Lanes<float> PowerOfTwo(LanesOfInts n) {
  return (Lanes<float>)((n + 127) << 23);
}

// Sets n to the integer next to x / ln 2, and returns e^r - 1 for the rest r = x - n ln 2, of which
// |r| <= ln(2)/2. Its error is below 2e-7 of |r|.
[[gnu::always_inline]] inline Lanes<float> ExpOfRest(Lanes<float> x, Lanes<float>* n) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  *n = (x * 1.44269504f + kRound) - kRound;
  const Lanes<float> r = (x - *n * 0.693359375f) + *n * 2.12194440e-4f;
  Lanes<float> p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p * r * r + r;
}

// Beyond the limits the result is infinity or 0. Subnormal results are rounded as others.
[[gnu::always_inline]] inline Lanes<float> ExpOfAny(Lanes<float> x) {
  const Lanes<float> zero = {};
  Lanes<float> n;
  const Lanes<float> p = ExpOfRest(AtMost(zero + 89.0f, AtLeast(zero - 104.0f, x)), &n) + 1.0f;
  // Two factors, because 2^n alone may lie outside of what float32 holds.
  const LanesOfInts whole = __builtin_convertvector(n, LanesOfInts), half = whole >> 1;
  return p * PowerOfTwo(half) * PowerOfTwo(whole - half);
}

// With m = e^(2|x|) - 1 it is m / (m + 2), and the sign of x.
[[gnu::always_inline]] inline Lanes<float> TanhOfAny(Lanes<float> x) {
  typedef uint32_t Bits __attribute__((vector_size(kRegisterBytes)));
  const Bits sign = (Bits)x & 0x80000000u;
  const Lanes<float> size = (Lanes<float>)((Bits)x ^ sign);
  Lanes<float> n;
  // From 10 on, tanh(x) is 1 in float32.
  const Lanes<float> rest = ExpOfRest(AtMost(Lanes<float>{} + 20.0f, size + size), &n);
  const Lanes<float> power = PowerOfTwo(__builtin_convertvector(n, LanesOfInts));
  const Lanes<float> m = power * rest + (power - 1.0f);
  return (Lanes<float>)((Bits)(m / (m + 2.0f)) | sign);
}

}  // namespace
}  // namespace lathe::cpu
