// The sequence to which a row of a packed batch belongs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lathe::cuda {

// The rows [begin, end) of a row's sequence, and its number; none for a row beyond the last
// sequence.
struct RowRange {
  int64_t begin = 0, end = 0, sequence = -1;
  __device__ bool Has(int64_t row) const { return row >= begin && row < end; }
};

// cu_seqlens: (batch + 1)
__device__ inline RowRange SequenceOf(const int32_t* cu_seqlens, int64_t batch, int64_t row) {
  // cu_seqlens[below] <= row, and row < cu_seqlens[above] if above <= batch
  int64_t below = 0, above = batch + 1;
  while (above - below > 1) {
    const int64_t middle = (below + above) / 2;
    (cu_seqlens[middle] <= row ? below : above) = middle;
  }
  if (above > batch) return {};
  return {cu_seqlens[below], cu_seqlens[above], below};
}

}  // namespace lathe::cuda
