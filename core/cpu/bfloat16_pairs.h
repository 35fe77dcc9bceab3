// Products of small bfloat16 matrices by the instruction that multiplies pairs (AVX512-BF16), and
// the layouts of operands that it takes.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

// Two neighbours k and k + 1 along the dimension that a product sums over; k is in the lower half.
// Rows of an even number of bfloat16 elements are rows of pairs as they lie in memory.
typedef uint32_t Pair __attribute__((may_alias));

#if LATHE_HAS_BFLOAT16_PRODUCTS
// C = A B, or C += A B, as `result` says, for `kRows` rows and `kLines` lines of columns. A:
// (kRows, K) and B: (K, 16 kLines) consist of pairs.
template <int kRows, int kLines>
[[gnu::noinline]] void Block(int64_t K, const Elements<uint32_t>& a, const uint32_t* b, int64_t ldb,
                             float* c, int64_t ldc, Result result) {
  __m512 sums[kRows][kLines];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) sums[r][l] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < K; ++k) {
    __m512i line[kLines];
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) line[l] = _mm512_loadu_si512(b + k * ldb + l * 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i factor = _mm512_set1_epi32(
          static_cast<int>(*reinterpret_cast<const Pair*>(a.data + r * a.row + k * a.column)));
#pragma GCC unroll 8
      for (int l = 0; l < kLines; ++l)
        sums[r][l] = _mm512_dpbf16_ps(sums[r][l], (__m512bh)factor, (__m512bh)line[l]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) {
      float* to = c + r * ldc + l * 16;
      const bool adds = result == Result::kAddTo;
      _mm512_storeu_ps(to, adds ? _mm512_add_ps(_mm512_loadu_ps(to), sums[r][l]) : sums[r][l]);
    }
  }
}

// Returns rows of x as rows of pairs, without a copy. Their length and `stride` are even.
Elements<uint32_t> PairsOf(const BFloat16* x, int64_t stride) {
  return {reinterpret_cast<const uint32_t*>(x), stride / 2, 1};
}

// out: (d / 2, ld) of pairs = the transpose of `rows` strips of d elements, with zeros from `rows`
// up to a whole line.
void TransposePairs(uint32_t* out, int64_t ld, const BFloat16* x, int64_t stride, int64_t rows,
                    int64_t d) {
  // Nothing is computed, so any type of 32 bits will do.
  TransposeTo(reinterpret_cast<float*>(out), ld, reinterpret_cast<const float*>(x), stride / 2,
              rows, d / 2);
}

// out: (ceil(rows / 2), d). Each pair is of two neighbouring rows; a missing last row counts as 0.
void PairRows(uint32_t* out, const BFloat16* x, int64_t stride, int64_t rows, int64_t d) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    const BFloat16 *first = x + r * stride, *second = first + stride;
    uint32_t* to = out + r / 2 * d;
#pragma omp simd
    for (int64_t c = 0; c < d; ++c)
      to[c] = first[c].bits | static_cast<uint32_t>(second[c].bits) << 16;
  }
  if (r == rows) return;
#pragma omp simd
  for (int64_t c = 0; c < d; ++c) out[r / 2 * d + c] = x[r * stride + c].bits;
}

[[gnu::always_inline]] inline uint32_t Rounded(float x) {
  BFloat16 rounded;
  Store(rounded, x);
  return rounded.bits;
}

// Does the same for `rows` rows of n float32 elements, which are rounded. Rows of `out` are ld
// apart.
void PairRows(uint32_t* out, int64_t ld, const float* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r += 2) {
    const float *first = x + r * ld, *second = first + ld;
    uint32_t* to = out + r / 2 * ld;
    if (r + 1 < rows) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) to[c] = Rounded(first[c]) | Rounded(second[c]) << 16;
    } else {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) to[c] = Rounded(first[c]);
    }
  }
}
#endif

}  // namespace
}  // namespace lathe::cpu
