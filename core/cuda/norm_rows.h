// Rows that kernels of layer normalisation hold in registers: by a warp up to 1,024 columns and by
// a block beyond. A row's columns form nb = ceil(n / 4) groups {b, nb + b, 2 nb + b, 3 nb + b},
// which share a block of dropout's random bits; a thread holds whole groups: V neighbouring ones at
// a time, of each quarter row.
#pragma once

#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/cuda/norm_shape.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"

namespace lathe::cuda {

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

// dweight += the sums over chunks of partial's (chunks, 2 n) first n columns, dbias of the others.
void AddNormPartials(float* dweight, float* dbias, const float* partial, int64_t chunks, int64_t n);

}  // namespace lathe::cuda
