// Products of small matrices, of a size to stay in the cache, and the copies that they work on.
//
// For kernel sources only, which are compiled once for each instruction set level: everything is in
// an unnamed namespace, so that no level runs another's code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {
namespace {

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// A cache line of elements. Every matrix that a product reads along its rows has a multiple of
// this many columns, so no product and no softmax has a remainder.
template <typename T>
struct Line {
  static constexpr int64_t kSize = 64 / sizeof(T);
  typedef T Vector __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};
template <typename T>
int64_t WholeLines(int64_t n) {
  return (n + Line<T>::kSize - 1) / Line<T>::kSize * Line<T>::kSize;
}
// The distance of rows of n elements: an odd number of lines, so that a column's elements spread
// over the whole cache.
template <typename T>
int64_t RowStride(int64_t n) {
  return WholeLines<T>(n) | Line<T>::kSize;
}

// What fits into the registers: 8 x 2 accumulators of a line with AVX-512, 4 x 1 of half as wide
// registers.
constexpr int kMostRows = LATHE_ISA >= 4 ? 8 : 4;
constexpr int kMostLines = LATHE_ISA >= 4 ? 2 : 1;

// An operand of which a product reads single elements: (m, k) is at data[m * row + k * column].
template <typename T>
struct Elements {
  const T* data;
  int64_t row, column;
};

// C [+]= A B for `kRows` rows and `kLines` lines of columns.
template <int kRows, int kLines, typename T>
[[gnu::always_inline]] inline void Block(int64_t K, const Elements<T>& a, const T* b, int64_t ldb,
                                         T* c, int64_t ldc, bool accumulate) {
  using Vector = typename Line<T>::Vector;
  constexpr int64_t kSize = Line<T>::kSize;
  Vector sums[kRows][kLines] = {};
  for (int64_t k = 0; k < K; ++k) {
    Vector line[kLines];
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) line[l] = *(const Vector*)(b + k * ldb + l * kSize);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const T factor = a.data[r * a.row + k * a.column];
#pragma GCC unroll 8
      for (int l = 0; l < kLines; ++l) sums[r][l] += factor * line[l];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) {
      Vector* to = (Vector*)(c + r * ldc + l * kSize);
      *to = accumulate ? *to + sums[r][l] : sums[r][l];
    }
  }
}

// At most `kRows` rows.
template <int kRows, int kLines, typename T>
void Rows(int64_t rows, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, T* c, int64_t ldc,
          bool accumulate) {
  if (rows == kRows) return Block<kRows, kLines>(K, a, b, ldb, c, ldc, accumulate);
  if constexpr (kRows > 1) Rows<kRows - 1, kLines>(rows, K, a, b, ldb, c, ldc, accumulate);
}

// C (M, N) [+]= A B with B (K, N); N is a multiple of a line.
template <typename T>
void Product(int64_t M, int64_t N, int64_t K, Elements<T> a, const T* b, int64_t ldb, T* c,
             int64_t ldc, bool accumulate) {
  constexpr int64_t kColumns = kMostLines * Line<T>::kSize;
  for (int64_t m = 0; m < M; m += kMostRows) {
    const int64_t rows = Min(kMostRows, M - m);
    const Elements<T> am = {a.data + m * a.row, a.row, a.column};
    int64_t n = 0;
    for (; n + kColumns <= N; n += kColumns) {
      Rows<kMostRows, kMostLines>(rows, K, am, b + n, ldb, c + m * ldc + n, ldc, accumulate);
    }
    for (; n < N; n += Line<T>::kSize) {
      Rows<kMostRows, 1>(rows, K, am, b + n, ldb, c + m * ldc + n, ldc, accumulate);
    }
  }
}

#if LATHE_ISA >= 4
typedef float Line16 __attribute__((vector_size(64)));
typedef int32_t Lanes16 __attribute__((vector_size(64)));

// One of four steps of transposing 16 x 16: swaps the off-diagonal blocks of `size` in each block
// of twice that.
template <int size>
[[gnu::always_inline]] inline void SwapBlocks(Line16 (&x)[16]) {
  Lanes16 upper, lower;
  for (int l = 0; l < 16; ++l) {
    upper[l] = (l & size) != 0 ? 16 + l - size : l;
    lower[l] = (l & size) != 0 ? 16 + l : l + size;
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & size) != 0) continue;
    const Line16 a = x[i], c = x[i + size];
    x[i] = __builtin_shuffle(a, c, upper);
    x[i + size] = __builtin_shuffle(a, c, lower);
  }
}

// out (16, ld) = the transpose of `rows` <= 16 rows of 16 columns, followed by zeros.
template <typename T>
void TransposeBlock(float* out, int64_t ld, const T* in, int64_t stride, int64_t rows) {
  Line16 x[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    alignas(64) float row[16] = {};
    if (r < rows) {
      for (int c = 0; c < 16; ++c) row[c] = Load(in[r * stride + c]);
    }
    x[r] = *reinterpret_cast<const Line16*>(row);
  }
  SwapBlocks<8>(x);
  SwapBlocks<4>(x);
  SwapBlocks<2>(x);
  SwapBlocks<1>(x);
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) *reinterpret_cast<Line<float>::Vector*>(out + c * ld) = x[c];
}
#endif

// out (columns, ld) = in^T with zeros from `rows` up to a whole line.
template <typename M, typename T>
void TransposeTo(M* out, int64_t ld, const T* in, int64_t stride, int64_t rows, int64_t columns) {
#if LATHE_ISA >= 4
  if constexpr (std::is_same_v<M, float>) {
    if (columns % 16 == 0) {
      for (int64_t r = 0; r < rows; r += 16) {
        for (int64_t c = 0; c < columns; c += 16) {
          TransposeBlock(out + c * ld + r, ld, in + r * stride + c, stride, rows - r);
        }
      }
      return;
    }
  }
#endif
  const int64_t whole = WholeLines<M>(rows);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = rows; r < whole; ++r) out[c * ld + r] = 0;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * ld + r] = Load(in[r * stride + c]);
  }
}

// `rows` rows of d activations, one head's, as products read them: with zeros up to whole lines. A
// copy costs little and lies densely, where rows of activations that are a multiple of 4 KB apart
// would push each other out of the cache.
template <typename M, typename T>
void Read(M* out, const T* x, int64_t stride, int64_t rows, int64_t d) {
  const int64_t width = WholeLines<M>(d);
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) out[r * width + c] = Load(x[r * stride + c]);
    for (int64_t c = d; c < width; ++c) out[r * width + c] = 0;
  }
}

template <typename M, typename T>
void Write(T* x, int64_t stride, const M* from, int64_t rows, int64_t d) {
  const int64_t width = WholeLines<M>(d);
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) Store(x[r * stride + c], from[r * width + c]);
  }
}

}  // namespace
}  // namespace lathe::cpu
