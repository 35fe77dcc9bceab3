// The scratch memory in which a device sums the gradients of attention's tables of relative
// positions. The backend allocates it, and `lathe estimate-memory` counts it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lathe/core/base/round_up.h"

namespace lathe {

constexpr int kManyQueries = 64;  // queries in a tile

// Partial sums for the gradients of the tables. Each slot has the sums over a part of the queries,
// one for each offset. In each slot, one block adds up a head's sums in a fixed order, so they
// don't depend on timing.
struct OffsetSums {
  int32_t first = 0;  // the lowest offset
  int32_t count = 0;  // the number of offsets
  int32_t slots = 0;
  float* bias = nullptr;     // [slots, count, heads], or null if the gradient is not wanted
  float* keys = nullptr;     // [slots, count, heads * head_dim], or null
  float* queries = nullptr;  // the same
};

// The queries and keys whose offsets are summed.
struct OffsetSpan {
  int64_t max_seqlen = 0;         // tokens of the longest sequence
  int64_t window = 0;             // no key is farther from its query
  bool first_query_only = false;  // each sequence has one query, its first token
};

// Returns the offsets that occur, and the number of slots for `items` tiles of queries.
// `slot_columns` are the columns of all wanted sums together. All slots together take at most 128
// MiB, unless a single one takes more.
inline OffsetSums ShapeOfOffsetSums(const OffsetSpan& span, int64_t slot_columns, int64_t items) {
  constexpr int64_t kMostSlots = 64, kMostBytes = int64_t{128} << 20;
  OffsetSums sums;
  const int64_t farthest = std::min(span.window, span.max_seqlen - 1);
  sums.first = static_cast<int32_t>(-farthest);
  sums.count = static_cast<int32_t>(span.first_query_only ? farthest + 1 : 2 * farthest + 1);
  const int64_t bytes = sums.count * slot_columns * static_cast<int64_t>(sizeof(float));
  const int64_t slots = bytes == 0 ? items : std::clamp<int64_t>(kMostBytes / bytes, 1, kMostSlots);
  sums.slots = static_cast<int32_t>(std::min(slots, items));
  return sums;
}

// Returns the number of tiles of queries of all sequences.
inline int64_t QueryTiles(int64_t batch, const OffsetSpan& span) {
  return span.first_query_only ? batch : batch * DivideUp(span.max_seqlen, int64_t{kManyQueries});
}

}  // namespace lathe
