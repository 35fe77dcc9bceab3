// This computes in software what attention's kernels of level 5 take from AVX-512F and AVX512-BF16.
// The compiler includes it before the kernels' source. So they run on processors with AVX2, and far
// slower.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace lathe::avx512_in_software {

template <typename To, typename From>
inline To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

struct Floats {
  float lane[16];
};
struct Words {
  uint32_t lane[16];
};

inline float ToFloat(uint32_t high_half) { return Bits<float>(high_half << 16); }

// Adds the products of both elements of each pair to `sums`, those of the upper elements first. The
// processor takes denormal operands and results as 0; this does not.
inline __m512 Dpbf16(__m512 sums, __m512bh a, __m512bh b) {
  Floats out = Bits<Floats>(sums);
  const Words x = Bits<Words>(a), y = Bits<Words>(b);
  for (int i = 0; i < 16; ++i) {
    out.lane[i] = std::fma(ToFloat(x.lane[i] >> 16), ToFloat(y.lane[i] >> 16), out.lane[i]);
    out.lane[i] = std::fma(ToFloat(x.lane[i] & 0xffff), ToFloat(y.lane[i] & 0xffff), out.lane[i]);
  }
  return Bits<__m512>(out);
}

// Rounds to the nearest bfloat16, ties to even; magnitudes below 2^-126 become 0.
inline __m256bh CvtnepsPbh(__m512 x) {
  const Words in = Bits<Words>(x);
  uint16_t out[16];
  for (int i = 0; i < 16; ++i) {
    const uint32_t u = in.lane[i], magnitude = u & 0x7fffffff;
    const uint32_t rounded = magnitude > 0x7f800000   ? u | 0x400000
                             : magnitude < 0x00800000 ? u & 0x80000000
                                                      : u + 0x7fff + (u >> 16 & 1);
    out[i] = static_cast<uint16_t>(rounded >> 16);
  }
  __m256bh to;
  std::memcpy(&to, out, sizeof(to));
  return to;
}

inline __m512i Widen(__m256i halves) {
  uint16_t in[16];
  std::memcpy(in, &halves, sizeof(in));
  Words out;
  for (int i = 0; i < 16; ++i) out.lane[i] = in[i];
  return Bits<__m512i>(out);
}

inline __m512i ShiftLeft(__m512i x, unsigned by) {
  Words out = Bits<Words>(x);
  for (uint32_t& lane : out.lane) lane <<= by;
  return Bits<__m512i>(out);
}

// The second operand is the result if one of them is NaN.
inline __m512 Max(__m512 a, __m512 b) {
  const Floats x = Bits<Floats>(a), y = Bits<Floats>(b);
  Floats out;
  for (int i = 0; i < 16; ++i) out.lane[i] = x.lane[i] > y.lane[i] ? x.lane[i] : y.lane[i];
  return Bits<__m512>(out);
}
inline __m512 Min(__m512 a, __m512 b) {
  const Floats x = Bits<Floats>(a), y = Bits<Floats>(b);
  Floats out;
  for (int i = 0; i < 16; ++i) out.lane[i] = x.lane[i] < y.lane[i] ? x.lane[i] : y.lane[i];
  return Bits<__m512>(out);
}

inline __m512 Reciprocal(__m512 x) {
  Floats out = Bits<Floats>(x);
  for (float& lane : out.lane) lane = 1 / lane;
  return Bits<__m512>(out);
}

// The products of the even lanes' 32 bits, as 64 bits.
inline __m512i MulEpu32(__m512i a, __m512i b) {
  const Words x = Bits<Words>(a), y = Bits<Words>(b);
  uint64_t out[8];
  for (int i = 0; i < 8; ++i) out[i] = uint64_t{x.lane[2 * i]} * y.lane[2 * i];
  __m512i to;
  std::memcpy(&to, out, sizeof(to));
  return to;
}

inline __m512 Zero() { return Bits<__m512>(Floats{}); }
inline __m512 Add(__m512 a, __m512 b) { return a + b; }
inline __m512i Fill(int value) {
  Words out;
  for (uint32_t& lane : out.lane) lane = static_cast<uint32_t>(value);
  return Bits<__m512i>(out);
}
template <typename Register>
inline Register Load(const void* from) {
  Register to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}
inline void Store(float* to, __m512 x) { std::memcpy(to, &x, sizeof(x)); }

}  // namespace lathe::avx512_in_software

// Kernels use masks that are full, so these ignore them.
#define _mm512_dpbf16_ps ::lathe::avx512_in_software::Dpbf16
#define _mm512_cvtneps_pbh ::lathe::avx512_in_software::CvtnepsPbh
#define _mm512_maskz_cvtepu16_epi32(mask, x) ::lathe::avx512_in_software::Widen(x)
#define _mm512_maskz_slli_epi32(mask, x, by) ::lathe::avx512_in_software::ShiftLeft(x, by)
#define _mm512_maskz_max_ps(mask, a, b) ::lathe::avx512_in_software::Max(a, b)
#define _mm512_maskz_min_ps(mask, a, b) ::lathe::avx512_in_software::Min(a, b)
#define _mm512_maskz_rcp14_ps(mask, x) ::lathe::avx512_in_software::Reciprocal(x)
#define _mm512_maskz_mul_epu32(mask, a, b) ::lathe::avx512_in_software::MulEpu32(a, b)
#define _mm512_setzero_ps ::lathe::avx512_in_software::Zero
#define _mm512_add_ps ::lathe::avx512_in_software::Add
#define _mm512_set1_epi32 ::lathe::avx512_in_software::Fill
#define _mm512_loadu_ps ::lathe::avx512_in_software::Load<__m512>
#define _mm512_loadu_si512 ::lathe::avx512_in_software::Load<__m512i>
#define _mm512_storeu_ps ::lathe::avx512_in_software::Store
