// Rows that kernels of layer normalisation hold in registers: by a warp up to 1,024 columns and by
// a block beyond. A row's columns form nb = ceil(n / 4) groups {b, nb + b, 2 nb + b, 3 nb + b},
// which share a block of dropout's random bits; a thread holds whole groups: V neighbouring ones at
// a time, of each quarter row.
#pragma once

#include <algorithm>
#include <type_traits>

#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"

namespace lathe::cuda {

constexpr int kElements = 32;                               // of a row, held by one thread
constexpr int kWarpColumns = 1024;                          // rows that a warp can hold
constexpr int kNormForwardRows = 4, kNormBackwardRows = 8;  // rows of a block at once, a warp each
constexpr int kWideBlock = 1024;

// Calls body(i, column, valid): V elements, the i-th and following of this thread's kElements, lie
// at `column`. Unless valid, the row has no such columns.
template <int V, typename Body>
__device__ void ForPacks(int64_t n, Body body) {
  const int64_t quarter = (n + 3) / 4;
#pragma unroll
  for (int j = 0; j < kElements / (4 * V); ++j) {
    const int64_t b = (threadIdx.x + static_cast<int64_t>(j) * blockDim.x) * V;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int64_t column = q * quarter + b;
      body((j * 4 + q) * V, column, b < quarter && column < n);
    }
  }
}

// The sum over the row's threads: a warp, or the block. scratch: shared, 32 floats.
__device__ inline float RowSum(float x, float* scratch) {
  return blockDim.x == 32 ? WarpSum(x) : BlockSum(x, scratch);
}

// Zeroes what is dropped of this thread's elements of the row and scales the others.
template <int V>
__device__ void DropOut(float* x, int64_t row, const cpu::DropoutMask& mask, int64_t n) {
  const int32_t sample = mask.row_samples[row], position = mask.row_positions[row];
  const float scale = static_cast<float>(mask.scale);
#pragma unroll
  for (int j = 0; j < kElements / (4 * V); ++j) {
    const int64_t b = (threadIdx.x + static_cast<int64_t>(j) * blockDim.x) * V;
    if (b >= (n + 3) / 4) break;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const PhiloxBlock bits = DropoutBits(mask, sample, position, static_cast<uint32_t>(b + i));
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        float& value = x[(j * 4 + q) * V + i];
        value = bits.v[q] < mask.threshold ? 0 : value * scale;
      }
    }
  }
}

struct RowMoments {
  float mean, rstd;
};
// Of a row whose elements this thread has in `values`, in each of the row's threads.
template <int V>
__device__ RowMoments MomentsOf(const float* values, int64_t n, double eps, float* scratch) {
  float sum = 0;
  ForPacks<V>(n, [&](int i, int64_t, bool valid) {
    for (int v = 0; v < V; ++v) sum += valid ? values[i + v] : 0;
  });
  const float m = RowSum(sum, scratch) / static_cast<float>(n);
  float squares = 0;
  ForPacks<V>(n, [&](int i, int64_t, bool valid) {
    for (int v = 0; v < V; ++v) {
      squares += valid ? (values[i + v] - m) * (values[i + v] - m) : 0;
    }
  });
  const float variance = RowSum(squares, scratch) / static_cast<float>(n);
  return {m, 1 / sqrtf(variance + static_cast<float>(eps))};
}

// to: (2 n), the block's sums of dw, then of db, over its warps in their order. sums: shared,
// 2 kWarpColumns.
template <int V>
__device__ void StoreBlockSums(float* to, const float* dw, const float* db, int64_t n,
                               float* sums) {
  if (blockDim.y == 1) {
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      for (int v = 0; v < V && valid; ++v) {
        to[column + v] = dw[i + v];
        to[n + column + v] = db[i + v];
      }
    });
    return;
  }
  for (unsigned warp = 0; warp < blockDim.y; ++warp) {
    if (threadIdx.y == warp) {
      ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
        for (int v = 0; v < V && valid; ++v) {
          sums[column + v] = dw[i + v] + (warp == 0 ? 0 : sums[column + v]);
          sums[n + column + v] = db[i + v] + (warp == 0 ? 0 : sums[n + column + v]);
        }
      });
    }
    __syncthreads();
  }
  for (int64_t c = threadIdx.y * 32 + threadIdx.x; c < 2 * n; c += blockDim.y * 32) to[c] = sums[c];
}

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

// dweight += the sums over chunks of partial's (chunks, 2 n) first n columns, dbias of the others.
void AddNormPartials(float* dweight, float* dbias, const float* partial, int64_t chunks, int64_t n);

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
