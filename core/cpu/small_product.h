// Products of matrices that are small enough to stay in the cache, and the copies that they work
// on.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
// Everything is in an unnamed namespace, so that no level runs another's code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/lanes.h"
#include "lathe/core/cpu/level.h"

namespace lathe::cpu {
namespace {

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// A line is as many elements as a register holds. Every matrix that a product reads along its rows
// has a multiple of this many columns, so no product and no softmax has a remainder.
template <typename T>
struct Line {
  static constexpr int64_t kSize = kRegisterBytes / sizeof(T);
  typedef T Vector __attribute__((vector_size(kRegisterBytes), aligned(alignof(T)), may_alias));
};
template <typename T>
[[gnu::always_inline]] inline typename Line<T>::Vector LineAt(const T* x) {
  return *reinterpret_cast<const typename Line<T>::Vector*>(x);
}
// Combines all elements of a line into one, by halving the line again and again.
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
// Returns the distance between rows of n elements. It is an odd number of lines, so that a column's
// elements spread over the whole cache.
template <typename T>
int64_t RowStride(int64_t n) {
  return WholeLines<T>(n) | Line<T>::kSize;
}

// The number of accumulators that fit into the registers, beside the lines and the element that are
// multiplied. With 32 registers there are 8 x 2 accumulators, with 16 registers 6 x 2.
constexpr int kMostLines = 2;
constexpr int kMostRows = kVectorRegisters == 32 ? 8 : 6;

// An operand of which a product reads single elements; (m, k) is at data[m * row + k * column].
template <typename T>
struct Elements {
  const T* data;
  int64_t row, column;
};

// What a product does with the old values of its result.
enum class Result : bool { kOverwrite, kAddTo };

// C = A B, or C += A B, as `result` says, for `kRows` rows and `kLines` lines of columns. Sums are
// rounded if C is bfloat16, which is overwritten.
template <int kRows, int kLines, typename T, typename C>
[[gnu::always_inline]] inline void Block(int64_t K, const Elements<T>& a, const T* b, int64_t ldb,
                                         C* c, int64_t ldc, Result result) {
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
    if constexpr (std::is_same_v<C, BFloat16>) {
      static_assert(kLines <= 2);
      if constexpr (kLines == 2) {
        StoreTwoLanes(c + r * ldc, sums[r][0], sums[r][1]);
      } else {
        StoreLanes(c + r * ldc, sums[r][0], AllLanes{});
      }
    } else {
#pragma GCC unroll 8
      for (int l = 0; l < kLines; ++l) {
        Vector* to = (Vector*)(c + r * ldc + l * kSize);
        *to = result == Result::kAddTo ? *to + sums[r][l] : sums[r][l];
      }
    }
  }
}

// Does the same for at most `kRows` rows.
template <int kRows, int kLines, typename T, typename C>
void Rows(int64_t rows, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, C* c, int64_t ldc,
          Result result) {
  if (rows == kRows) return Block<kRows, kLines>(K, a, b, ldb, c, ldc, result);
  if constexpr (kRows > 1) Rows<kRows - 1, kLines>(rows, K, a, b, ldb, c, ldc, result);
}

// Returns the number of blocks that M rows take.
constexpr int64_t Blocks(int64_t M) { return DivideUp(M, kMostRows); }

// Does the same for M rows and `kLines` lines of columns.
template <int kLines, typename T, typename C>
void Panel(int64_t M, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, C* c, int64_t ldc,
           Result result) {
  // Blocks have about as many rows each, because a last block of one row would take as long as one
  // of three.
  const int64_t step = kMostRows == 8 ? 8 : DivideUp(M, Blocks(M));
  for (int64_t m = 0; m < M; m += step) {
    Rows<kMostRows, kLines>(Min(step, M - m), K, {a.data + m * a.row, a.row, a.column}, b, ldb,
                            c + m * ldc, ldc, result);
  }
}

constexpr int64_t kProductDepth = 128;  // the most that is summed before sums are stored

// C: (M, N) = A B, or C += A B, as `result` says, with B: (K, N); N is a multiple of a line. The
// part of B that all rows read at a time stays in the nearest cache. C may be bfloat16 where A and
// B are float32, if it is overwritten and K is at most kProductDepth.
template <typename T, typename C>
void Product(int64_t M, int64_t N, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, C* c,
             int64_t ldc, Result result) {
  constexpr int64_t kColumns = kMostLines * Line<T>::kSize;
  for (int64_t k = 0; k < K; k += kProductDepth) {
    const int64_t depth = Min(kProductDepth, K - k);
    const Elements<T> ak = {a.data + k * a.column, a.row, a.column};
    const T* bk = b + k * ldb;
    const Result of_part = k > 0 ? Result::kAddTo : result;
    int64_t n = 0;
    for (; n + kColumns <= N; n += kColumns) {
      Panel<kMostLines>(M, depth, ak, bk + n, ldb, c + n, ldc, of_part);
    }
    for (; n < N; n += Line<T>::kSize) Panel<1>(M, depth, ak, bk + n, ldb, c + n, ldc, of_part);
  }
}

constexpr int kSide = kRegisterBytes / sizeof(float);  // side of the blocks that are transposed
typedef float SideLine __attribute__((vector_size(kRegisterBytes)));
typedef int32_t SideIndices __attribute__((vector_size(kRegisterBytes)));

#if LATHE_ISA >= 4
// Transposes each block of 2 `size` x 2 `size`: swaps its off-diagonal blocks of `size`, then
// transposes the blocks of `size`.
template <int size>
[[gnu::always_inline]] inline void TransposeInRegisters(SideLine (&x)[kSide]) {
  SideIndices upper, lower;
  for (int l = 0; l < kSide; ++l) {
    upper[l] = (l & size) != 0 ? kSide + l - size : l;
    lower[l] = (l & size) != 0 ? kSide + l : l + size;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) {
    if ((i & size) != 0) continue;
    const SideLine a = x[i], c = x[i + size];
    x[i] = Shuffled(a, c, upper);
    x[i + size] = Shuffled(a, c, lower);
  }
  if constexpr (size > 1) TransposeInRegisters<size / 2>(x);
}

// out: (kSide, ld) = the transpose of `rows` <= kSide rows of kSide columns, followed by zeros. If
// `whole`, all kSide rows are there.
template <bool whole, typename T>
[[gnu::always_inline]] inline void TransposeBlock(float* out, int64_t ld, const T* in,
                                                  int64_t stride, int64_t rows) {
  SideLine x[kSide];
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r)
    x[r] = whole || r < rows ? LoadLanes(in + r * stride, AllLanes{}) : SideLine{};
  TransposeInRegisters<kSide / 2>(x);
#pragma GCC unroll 16
  for (int c = 0; c < kSide; ++c) *reinterpret_cast<Line<float>::Vector*>(out + c * ld) = x[c];
}
#else
// Within each 16 bytes, takes groups of `size` neighbours from a and b in turn. They come from the
// first half of both, or from the last half if `upper`.
template <int size, bool upper>
[[gnu::always_inline]] inline SideLine Interleaved(SideLine a, SideLine b) {
  SideIndices from;
  for (int l = 0; l < kSide; ++l) {
    const int place = l % 4 / size / 2 * size + l % size + (upper ? 2 : 0) + l / 4 * 4;
    from[l] = place + (l / size % 2 != 0 ? kSide : 0);
  }
  return Shuffled(a, b, from);
}

// out: (kSide, ld) = the transpose of `rows` <= kSide rows of kSide columns, followed by zeros. If
// `whole`, all kSide rows are there. Four rows and columns at a time are transposed in each 16
// bytes of the registers.
template <bool whole, typename T>
[[gnu::always_inline]] inline void TransposeBlock(float* out, int64_t ld, const T* in,
                                                  int64_t stride, int64_t rows) {
  SideLine x[kSide];
#pragma GCC unroll 8
  for (int r = 0; r < kSide; ++r)
    x[r] = whole || r < rows ? LoadLanes(in + r * stride, AllLanes{}) : SideLine{};
  if constexpr (kSide == 8) {
    // Swaps the right half of a row and the left half of the row four below.
    SideIndices left;
    for (int l = 0; l < kSide; ++l) left[l] = l % 4 + l / 4 * kSide;
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const SideLine a = x[r], b = x[r + 4];
      x[r] = Shuffled(a, b, left);
      x[r + 4] = Shuffled(a, b, left + 4);
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < kSide; half += 4) {
    const SideLine low01 = Interleaved<1, false>(x[half], x[half + 1]);
    const SideLine high01 = Interleaved<1, true>(x[half], x[half + 1]);
    const SideLine low23 = Interleaved<1, false>(x[half + 2], x[half + 3]);
    const SideLine high23 = Interleaved<1, true>(x[half + 2], x[half + 3]);
    StoreLanes(out + half * ld, Interleaved<2, false>(low01, low23), AllLanes{});
    StoreLanes(out + (half + 1) * ld, Interleaved<2, true>(low01, low23), AllLanes{});
    StoreLanes(out + (half + 2) * ld, Interleaved<2, false>(high01, high23), AllLanes{});
    StoreLanes(out + (half + 3) * ld, Interleaved<2, true>(high01, high23), AllLanes{});
  }
}
#endif

// Prefetches `rows` strips of d elements that will soon be read, or written if `write`. The strips
// are too short for the processor to foresee where the next ones lie.
template <bool write, typename T>
[[gnu::always_inline]] inline void Fetch(const T* x, int64_t stride, int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < d; c += 64 / sizeof(T))
      __builtin_prefetch(x + r * stride + c, write, 2);
  }
}

// out: (columns, ld) = in^T, with zeros from `rows` up to a whole line.
template <typename M, typename T>
void TransposeTo(M* out, int64_t ld, const T* in, int64_t stride, int64_t rows, int64_t columns) {
  if constexpr (std::is_same_v<M, float>) {
    if (columns % kSide == 0) {
      int64_t r = 0;
      for (; r + kSide <= rows; r += kSide) {
        for (int64_t c = 0; c < columns; c += kSide)
          TransposeBlock<true>(out + c * ld + r, ld, in + r * stride + c, stride, kSide);
      }
      for (int64_t c = 0; r < rows && c < columns; c += kSide)
        TransposeBlock<false>(out + c * ld + r, ld, in + r * stride + c, stride, rows - r);
      return;
    }
  }
  const int64_t whole = WholeLines<M>(rows);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = rows; r < whole; ++r) out[c * ld + r] = 0;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * ld + r] = Load(in[r * stride + c]);
  }
}

// Copies `rows` rows of d activations of one head in the form that products read: with zeros up to
// whole lines. The copy costs little and is dense. Rows of activations that are a multiple of 4 KB
// apart would push each other out of the cache.
template <typename M, typename T>
void Read(M* out, const T* x, int64_t stride, int64_t rows, int64_t d) {
  constexpr int64_t kSize = Line<M>::kSize;
  const int64_t width = WholeLines<M>(d), lines = d / kSize * kSize;
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * stride;
    M* to = out + r * width;
    for (int64_t c = 0; c < lines; c += kSize)
      StoreLanes(to + c, LoadLanes(from + c, AllLanes{}), AllLanes{});
    for (int64_t c = lines; c < width; ++c) to[c] = c < d ? M(Load(from[c])) : M(0);
  }
}

// Does the same for products that read single elements: returns where they lie. Makes no copy, and
// leaves `copy` alone, if x has the products' type.
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
