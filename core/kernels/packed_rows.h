// Finds the sequence of a row in a packed batch, on the host and in kernels.
#pragma once

#include <cstdint>

namespace lathe {

// The rows [begin, end) of sequence number `index`. A row beyond the last sequence has the empty
// range [0, 0) and the number `batch`.
struct RowRange {
  int64_t begin = 0, end = 0, index = 0;
  [[gnu::always_inline]] constexpr bool Has(int64_t row) const { return row >= begin && row < end; }
};

// cu_seqlens: (batch + 1). Always inlined, because kernels include this header at several
// instruction set levels.
[[gnu::always_inline]] constexpr RowRange SequenceOf(const int32_t* cu_seqlens, int64_t batch,
                                                     int64_t row) {
  // cu_seqlens[below] <= row, and row < cu_seqlens[above] if above <= batch
  int64_t below = 0, above = batch + 1;
  while (above - below > 1) {
    const int64_t middle = (below + above) / 2;
    (cu_seqlens[middle] <= row ? below : above) = middle;
  }
  if (above > batch) return {0, 0, batch};
  return {cu_seqlens[below], cu_seqlens[above], below};
}

}  // namespace lathe
