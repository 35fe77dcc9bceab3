// Groups of threads that work on rows: a warp for each short row, or a block for each long one.
#pragma once

#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"

namespace lathe::cuda {

// For kernels whose blocks have kBlock threads along x:
//   for (int64_t r = Group::First(); r < rows; r += Group::Count()) {
//     for (int64_t c = Group::Rank(); c < columns; c += Group::kThreads) ...
//     const float sum = Group::Sum(part);  // in every thread of the group, in a fixed order
//   }
struct WarpPerRow {
  static constexpr int kThreads = 32, kRowsInBlock = kBlock / 32;
  static __device__ int64_t First() { return GlobalThread() / 32; }
  static __device__ int64_t Count() { return NumThreads() / 32; }
  static __device__ int Rank() { return static_cast<int>(threadIdx.x % 32); }
  template <typename T>
  static __device__ T Sum(T x) {
    return WarpSum(x);
  }
  static __device__ float Max(float x) { return WarpMax(x); }
};

struct BlockPerRow {
  static constexpr int kThreads = kBlock, kRowsInBlock = 1;
  static __device__ int64_t First() { return blockIdx.x; }
  static __device__ int64_t Count() { return gridDim.x; }
  static __device__ int Rank() { return static_cast<int>(threadIdx.x); }
  template <typename T>
  static __device__ T Sum(T x) {
    __shared__ T scratch[32];
    return BlockSum(x, scratch);
  }
  // Returns NaN if there is one.
  static __device__ float Max(float x) {
    __shared__ float scratch[32];
    x = WarpMax(x);
    __syncthreads();  // earlier readers of scratch are done
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    return WarpMax(scratch[threadIdx.x % (kBlock / 32)]);
  }
};

// Returns the grid for `rows` rows. It has at most `most` blocks, which loop.
template <typename Group>
dim3 GridForRows(int64_t rows, int64_t most = kMaxGrid) {
  const int64_t blocks = (rows + Group::kRowsInBlock - 1) / Group::kRowsInBlock;
  return dim3(static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks));
}

// Calls body(Group{}) with the group for rows of `columns` columns.
template <typename Body>
void WithRowGroup(int64_t columns, Body body) {
  if (columns <= 1024) return body(WarpPerRow{});
  body(BlockPerRow{});
}

}  // namespace lathe::cuda
