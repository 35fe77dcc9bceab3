// Rows that layer norm kernels hold in registers. A warp holds a row of up to 1,024 columns, a
// block a longer one. A row's columns form nb = ceil(n / 4) groups {b, nb + b, 2 nb + b, 3 nb + b}.
// The columns of a group share a block of dropout's random bits. A thread holds whole groups, V
// consecutive ones at a time, and so V columns in each quarter of the row.
#pragma once

#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/cuda/norm_shape.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"

namespace lathe::cuda {

// Calls body(i, column, valid) for the thread's kElements elements, V at a time. Elements i to i +
// V - 1 lie at `column` and behind it. If not `valid`, the row has no such columns.
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

// Returns the sum over the row's threads, which are a warp or the block. scratch: 32 floats in
// shared memory.
__device__ inline float RowSum(float x, float* scratch) {
  return blockDim.x == 32 ? WarpSum(x) : BlockSum(x, scratch);
}

// Applies dropout to this thread's elements of the row: zeroes some and scales the others.
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
// Returns the moments of a row to each of its threads. `values` has this thread's elements.
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

// Stores the block's sums, which are added over its warps in order. to: [2 n] gets those of dw,
// then those of db. sums: 2 kWarpColumns floats in shared memory.
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

// Sums partial: [chunks, 2 n] over the chunks. Adds the first n sums to dweight and the others to
// dbias.
void AddNormPartials(float* dweight, float* dbias, const float* partial, int64_t chunks, int64_t n);

}  // namespace lathe::cuda
