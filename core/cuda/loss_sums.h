// The first pass of a loss's sum: each block has a partial result.
#pragma once

#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"

namespace lathe::cuda {

constexpr int64_t kMaxPartials = 1024;  // most blocks of a sum, each with one partial result

// The result of one block in a loss's first pass.
struct Partial {
  double sum, count;
};
inline Partial* Partials() {
  return static_cast<Partial*>(Workspace(kMaxPartials * static_cast<int64_t>(sizeof(Partial))));
}

// Stores the block's totals of `sum` and `count` in to[blockIdx.x]. All of its kBlock threads must
// call this.
__device__ inline void StorePartial(Partial* to, double sum, double count) {
  __shared__ double scratch[32];
  sum = BlockSum(sum, scratch);
  count = BlockSum(count, scratch);
  if (threadIdx.x == 0) to[blockIdx.x] = {sum, count};
}

// What a label or a row that cannot be right gives.
__device__ inline float NaN() { return __uint_as_float(0x7fc00000u); }

}  // namespace lathe::cuda
