// The shared memory of attention with terms. These functions need no CUDA.
#pragma once

#include <cstddef>

#include "lathe/core/cuda/attention/attention_shape.h"
#include "lathe/core/kernels/attention_offset_sums.h"

namespace lathe::cuda {

// A block works on kQ queries and 64 keys, and on 64 columns at a time.
constexpr int kColumns = 64;
constexpr int kFewQueries = kSide;  // kQ with first_query_only, kManyQueries without
// The offsets between the queries and the keys of a tile.
template <int kQ>
constexpr int kOffsets = kQ + kKeys - 1;

// The shared memory of a block, in bytes. It holds two tiles of rows and one of scores. For each
// offset it holds the bias and the number of the table row; if `table`, that row, too.
constexpr size_t TermsBytes(int queries, bool table) {
  const int rows = 2 * queries + kKeys + (table ? queries + kKeys - 1 : 0);
  return sizeof(float) * (rows * kLd<kColumns> + 2 * (queries + kKeys));
}

}  // namespace lathe::cuda
