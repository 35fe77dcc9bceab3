// With how many blocks and threads kernels of layer normalisation are started (norm_rows.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lathe/core/cuda/launch.h"

namespace lathe::cuda {

constexpr int kElements = 32;                               // of a row, held by one thread
constexpr int kWarpColumns = 1024;                          // rows that a warp can hold
constexpr int kNormForwardRows = 4, kNormBackwardRows = 8;  // rows of a block at once, a warp each
constexpr int kWideBlock = 1024;

// Parts of the rows, a block each, whose weight gradients are summed apart.
inline int64_t NormChunks(int64_t rows, int64_t n) {
  const int64_t blocks = n <= kWarpColumns ? 264 : 132;  // two or one for each multiprocessor
  return std::min(blocks, (rows + kNormBackwardRows - 1) / kNormBackwardRows);
}

// Threads that hold a row of n columns, V neighbouring ones at a time: whole warps.
inline int64_t NormThreads(int64_t n, int V) {
  const int64_t groups = ((n + 3) / 4 + V - 1) / V, per_thread = kElements / (4 * V);
  return ((groups + per_thread - 1) / per_thread + 31) / 32 * 32;
}

// Blocks for rows of which a block holds so many at once; at most 2^20, they loop.
inline dim3 NormRowsGrid(int64_t rows, int64_t rows_of_block) {
  return dim3(static_cast<unsigned>(
      std::clamp<int64_t>((rows + rows_of_block - 1) / rows_of_block, 1, 1 << 20)));
}

// Calls body(integral constants V, most threads of a block; the block's shape): rows_of_block rows
// of n columns at a time where warps can hold them.
template <int kMostV, typename Body>
void WithNormShape(int64_t n, bool aligned, int rows_of_block, Body body) {
  const auto with = [&](auto v) {
    const int64_t threads = NormThreads(n, decltype(v)::value);
    if (threads == 32) {
      body(v, std::integral_constant<int, 256>{}, dim3(32, rows_of_block));
    } else if (threads <= 256) {
      body(v, std::integral_constant<int, 256>{}, dim3(static_cast<unsigned>(threads)));
    } else {
      body(v, std::integral_constant<int, kWideBlock>{}, dim3(static_cast<unsigned>(threads)));
    }
  };
  if (aligned && n % (4 * kMostV) == 0) {
    with(std::integral_constant<int, kMostV>{});
  } else {
    with(std::integral_constant<int, 1>{});
  }
}

}  // namespace lathe::cuda
