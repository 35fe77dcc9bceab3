// The innermost part of copies that exchange rows and columns on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace lathe {

// Tiles have at most this many rows and columns: both sides stay in the first-level cache.
inline constexpr int64_t kTransposedTile = 64;

// 16 bytes of elements, as many as a register of every x86-64 processor has.
template <typename T>
struct RegisterOf {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  typedef T Type __attribute__((vector_size(16)));
};

// Returns a and b with their elements in turns: the first halves if `half` is 0, else the second.
template <typename T, int half, int... i>
[[gnu::always_inline]] inline auto Interleaved(typename RegisterOf<T>::Type a,
                                               typename RegisterOf<T>::Type b,
                                               std::integer_sequence<int, i...>) {
  constexpr int kSize = RegisterOf<T>::kSize;
  return __builtin_shufflevector(a, b, (half * kSize / 2 + i / 2 + i % 2 * kSize)...);
}

// Transposes a square of kSize by kSize elements. Register i and register i + kSize / 2 are
// interleaved until each row has become a column.
template <typename T>
[[gnu::always_inline]] inline void TransposeSquare(const T* from, int64_t from_stride, T* to,
                                                   int64_t to_stride) {
  constexpr int kSize = RegisterOf<T>::kSize;
  using Register = typename RegisterOf<T>::Type;
  constexpr std::make_integer_sequence<int, kSize> kElements;
  Register rows[kSize], mixed[kSize];
  for (int i = 0; i < kSize; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(Register));
#pragma GCC unroll 4
  for (int round = 1; round < kSize; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kSize / 2; ++i) {
      mixed[2 * i] = Interleaved<T, 0>(rows[i], rows[i + kSize / 2], kElements);
      mixed[2 * i + 1] = Interleaved<T, 1>(rows[i], rows[i + kSize / 2], kElements);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i) rows[i] = mixed[i];
  }
  for (int i = 0; i < kSize; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(Register));
}

// to[r * to_stride + c] = from[c * from_stride + r] for a tile of `rows` by `columns` elements. T
// is an unsigned integer type of 1, 2, 4 or 8 bytes.
template <typename T>
void CopyTransposedTile(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows,
                        int64_t columns) {
  constexpr int64_t kSize = RegisterOf<T>::kSize;
  if (rows < kSize || columns < kSize) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) to[r * to_stride + c] = from[c * from_stride + r];
    }
    return;
  }
  // Whole rows leave the tile at once, because rows of `to` that lie a power of two apart would
  // drive each other out of the cache.
  T tile[kTransposedTile * kTransposedTile];
  for (int64_t r = 0; r < rows; r += kSize) {
    for (int64_t c = 0; c < columns; c += kSize) {
      if (r + kSize <= rows && c + kSize <= columns) {
        TransposeSquare(from + c * from_stride + r, from_stride, tile + r * kTransposedTile + c,
                        kTransposedTile);
        continue;
      }
      for (int64_t i = r; i < std::min(r + kSize, rows); ++i) {
        for (int64_t j = c; j < std::min(c + kSize, columns); ++j) {
          tile[i * kTransposedTile + j] = from[j * from_stride + i];
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, tile + r * kTransposedTile,
                static_cast<size_t>(columns) * sizeof(T));
  }
}

}  // namespace lathe
