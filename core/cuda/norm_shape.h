// The numbers of blocks and threads of layer norm kernels (norm_rows.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/launch.h"

namespace lathe::cuda {

constexpr int kElements = 32;                               // elements of a row in one thread
constexpr int kWarpColumns = 1024;                          // longest row that a warp holds
constexpr int kNormForwardRows = 4, kNormBackwardRows = 8;  // a block's rows at once, a warp each
constexpr int kWideBlock = 1024;

// Returns the number of chunks of rows. Each is a block's, and has separate sums of weight
// gradients.
inline int64_t NormChunks(int64_t rows, int64_t n) {
  const int64_t blocks = n <= kWarpColumns ? 264 : 132;  // two or one for each multiprocessor
  return std::min(blocks, DivideUp(rows, kNormBackwardRows));
}

// Returns the number of threads that hold a row of n columns, V consecutive ones at a time. It is a
// multiple of a warp.
inline int64_t NormThreads(int64_t n, int V) {
  const int64_t groups = DivideUp(DivideUp(n, 4), V), per_thread = kElements / (4 * V);
  return RoundUp(DivideUp(groups, per_thread), 32);
}

// Returns the grid for `rows` rows, of which a block holds rows_of_block at once. It has at most
// 2^20 blocks, which loop.
inline dim3 NormRowsGrid(int64_t rows, int64_t rows_of_block) {
  return dim3(
      static_cast<unsigned>(std::clamp<int64_t>(DivideUp(rows, rows_of_block), 1, 1 << 20)));
}

// Calls body(V, max_threads, block) with integral constants and the block's shape. If a warp can
// hold a row of n columns, a block takes rows_of_block rows at a time, else one.
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
