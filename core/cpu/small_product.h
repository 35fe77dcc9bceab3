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
[[gnu::always_inline]] inline typename Line<T>::Vector LineAt(const T* x) {
  return *reinterpret_cast<const typename Line<T>::Vector*>(x);
}
// What `combine` makes of all of a line's elements, halving it.
template <typename T, int64_t size = Line<T>::kSize, typename Vector, typename Combine>
[[gnu::always_inline]] inline T Reduced(Vector line, const Combine& combine) {
  if constexpr (size == 1) {
    return line[0];
  } else {
    typedef T Half __attribute__((vector_size(size / 2 * sizeof(T))));
    Half halves[2];
    __builtin_memcpy(halves, &line, sizeof(line));
    return Reduced<T, size / 2>(combine(halves[0], halves[1]), combine);
  }
}
template <typename T>
[[gnu::always_inline]] inline T Sum(typename Line<T>::Vector line) {
  return Reduced<T>(line, [](auto a, auto b) { return a + b; });
}
template <typename T>
[[gnu::always_inline]] inline T Largest(typename Line<T>::Vector line) {
  return Reduced<T>(line, [](auto a, auto b) { return a > b ? a : b; });
}

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
template <int kRows, int kLines, typename T, typename C>
void Rows(int64_t rows, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, C* c, int64_t ldc,
          bool accumulate) {
  if (rows == kRows) return Block<kRows, kLines>(K, a, b, ldb, c, ldc, accumulate);
  if constexpr (kRows > 1) Rows<kRows - 1, kLines>(rows, K, a, b, ldb, c, ldc, accumulate);
}

// C (M, N) [+]= A B for `kLines` lines of columns.
template <int kLines, typename T, typename C>
void Panel(int64_t M, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, C* c, int64_t ldc,
           bool accumulate) {
  for (int64_t m = 0; m < M; m += kMostRows) {
    Rows<kMostRows, kLines>(Min(kMostRows, M - m), K, {a.data + m * a.row, a.row, a.column}, b, ldb,
                            c + m * ldc, ldc, accumulate);
  }
}

// C (M, N) [+]= A B with B (K, N); N is a multiple of a line. What all rows read of B at a time
// stays in the nearest cache.
template <typename T, typename C>
void Product(int64_t M, int64_t N, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, C* c,
             int64_t ldc, bool accumulate) {
  constexpr int64_t kColumns = kMostLines * Line<T>::kSize, kDepth = 128;
  for (int64_t k = 0; k < K; k += kDepth) {
    const int64_t depth = Min(kDepth, K - k);
    const Elements<T> ak = {a.data + k * a.column, a.row, a.column};
    const T* bk = b + k * ldb;
    const bool add = accumulate || k > 0;
    int64_t n = 0;
    for (; n + kColumns <= N; n += kColumns) {
      Panel<kMostLines>(M, depth, ak, bk + n, ldb, c + n, ldc, add);
    }
    for (; n < N; n += Line<T>::kSize) Panel<1>(M, depth, ak, bk + n, ldb, c + n, ldc, add);
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
template <bool whole, typename T>
[[gnu::always_inline]] inline void TransposeBlock(float* out, int64_t ld, const T* in,
                                                  int64_t stride, int64_t rows) {
  Line16 x[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    alignas(64) float row[16] = {};
    if (whole || r < rows) {
#pragma omp simd
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

// Asks for `rows` strips of d elements that are wanted soon, for writing or reading: strips are too
// short for the processor to see where they lead.
template <bool write, typename T>
[[gnu::always_inline]] inline void Fetch(const T* x, int64_t stride, int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < d; c += 64 / sizeof(T))
      __builtin_prefetch(x + r * stride + c, write, 2);
  }
}

// out (columns, ld) = in^T with zeros from `rows` up to a whole line.
template <typename M, typename T>
void TransposeTo(M* out, int64_t ld, const T* in, int64_t stride, int64_t rows, int64_t columns) {
#if LATHE_ISA >= 4
  if constexpr (std::is_same_v<M, float>) {
    if (columns % 16 == 0) {
      int64_t r = 0;
      for (; r + 16 <= rows; r += 16) {
        for (int64_t c = 0; c < columns; c += 16)
          TransposeBlock<true>(out + c * ld + r, ld, in + r * stride + c, stride, 16);
      }
      for (int64_t c = 0; r < rows && c < columns; c += 16)
        TransposeBlock<false>(out + c * ld + r, ld, in + r * stride + c, stride, rows - r);
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
  constexpr int64_t kSize = Line<M>::kSize;
  const int64_t width = WholeLines<M>(d), lines = d / kSize * kSize;
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * stride;
    M* to = out + r * width;
    for (int64_t c = 0; c < lines; c += kSize) {
#pragma omp simd
      for (int64_t l = 0; l < kSize; ++l) to[c + l] = Load(from[c + l]);
    }
    for (int64_t c = lines; c < width; ++c) to[c] = c < d ? M(Load(from[c])) : M(0);
  }
}

// The same for products that read single elements: without a copy where x has their type.
template <typename M, typename T>
Elements<M> ReadElements(M* copy, const T* x, int64_t stride, int64_t rows, int64_t d) {
  if constexpr (std::is_same_v<M, T>) return {x, stride, 1};
  Read(copy, x, stride, rows, d);
  return {copy, WholeLines<M>(d), 1};
}

template <typename M, typename T>
void Write(T* x, int64_t stride, const M* from, int64_t rows, int64_t d) {
  constexpr int64_t kSize = Line<M>::kSize;
  const int64_t width = WholeLines<M>(d), lines = d / kSize * kSize;
  for (int64_t r = 0; r < rows; ++r) {
    T* to = x + r * stride;
    for (int64_t c = 0; c < lines; c += kSize) {
#pragma omp simd
      for (int64_t l = 0; l < kSize; ++l) Store(to[c + l], from[r * width + c + l]);
    }
    for (int64_t c = lines; c < d; ++c) Store(to[c], from[r * width + c]);
  }
}

}  // namespace
}  // namespace lathe::cpu
