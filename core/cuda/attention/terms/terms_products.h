// The products of the backward kernels with terms. `ds` is [kQ, 64] in shared memory, with one row
// for each query and one column for each key of a tile. kR is kQ / 16. All functions add to columns
// x + 16 c of their sums. A thread's rows are neighbours, because the rows of a table that belong
// to them are then neighbours, too.
#pragma once

#include "lathe/core/cuda/attention/terms/terms_tile.h"

namespace lathe::cuda {

// The number of offsets that a thread sums for. Thread row y has those from kOffsetsEach<kR> * y
// on.
template <int kR>
constexpr int kOffsetsEach = kR + 4;

// Adds sum_j ds_ij k_j to row i = kR y + r.
template <int kR>
__device__ void KeysToQueries(float (&sums)[kR][4], const float* ds, const float* k) {
  ds += kR * threadIdx.y * kKeysLd;
  k += threadIdx.x;
  for (int key = 0; key < kKeys; key += 4) {
    float4 fours[kR];
    LATHE_UNROLL
    for (int r = 0; r < kR; ++r) fours[r] = LoadFour(ds + r * kKeysLd + key);
    LATHE_UNROLL
    for (int c = 0; c < 4; ++c) {
      const float* column = k + key * kColumnsLd + c * kSide;
      LATHE_UNROLL
      for (int r = 0; r < kR; ++r) {
        sums[r][c] += fours[r].x * column[0];
        sums[r][c] += fours[r].y * column[kColumnsLd];
        sums[r][c] += fours[r].z * column[2 * kColumnsLd];
        sums[r][c] += fours[r].w * column[3 * kColumnsLd];
      }
    }
  }
}

// Adds by(r) times columns x + 16 c of `from` to row r of the thread's sums.
template <int kRows, typename By>
__device__ void AddProducts(float (&sums)[kRows][4], const float* from, By by) {
  float four[4];
  LATHE_UNROLL
  for (int c = 0; c < 4; ++c) four[c] = from[c * kSide];
  LATHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float factor = by(r);
    LATHE_UNROLL
    for (int c = 0; c < 4; ++c) sums[r][c] += factor * four[c];
  }
}

// Adds sum_j ds_ij table_t to row i = kR y + r, where t is the offset of i and j.
template <int kR>
__device__ void TableToQueries(float (&sums)[kR][4], const float* ds, const float* table) {
  ds += kR * threadIdx.y * kKeysLd;
  table += kR * threadIdx.y * kColumnsLd + threadIdx.x;
  for (int m = 0; m < kKeys + kR - 1; ++m) {  // t = kR y + m
    AddProducts(sums, table + m * kColumnsLd, [&](int r) {
      const int key = kKeys - 1 + r - m;
      return key >= 0 && key < kKeys ? ds[r * kKeysLd + key] : 0;
    });
  }
}

// Adds sum_i ds_ij table_t to row j = 4 y + r, where t is the offset of i and j.
template <int kQ>
__device__ void TableToKeys(float (&sums)[4][4], const float* ds, const float* table) {
  const int y = threadIdx.y;
  ds += 4 * y;
  table += (kKeys - 4 - 4 * y) * kColumnsLd + threadIdx.x;
  for (int m = 0; m < kQ + 3; ++m) {  // t = 60 - 4 y + m
    AddProducts(sums, table + m * kColumnsLd, [&](int r) {
      const int query = m - 3 + r;
      return query >= 0 && query < kQ ? ds[query * kKeysLd + r] : 0;
    });
  }
}

// Adds sum ds_ij q_i to row t, over all i and j whose offset is t.
template <int kQ, int kEach>
__device__ void QueriesToOffsets(float (&sums)[kEach][4], const float* ds, const float* q) {
  // Query i and key m - g have offset t = kEach y + g, with i = kEach y - 63 + m.
  const int from = kEach * static_cast<int>(threadIdx.y) - (kKeys - 1);
  const int begin = max(0, -from), end = min(kKeys + kEach - 1, kQ - from);
  for (int m = begin; m < end; ++m) {
    const float* row = ds + (from + m) * kKeysLd;
    AddProducts(sums, q + (from + m) * kColumnsLd + threadIdx.x, [&](int g) {
      const int key = m - g;
      return key >= 0 && key < kKeys ? row[key] : 0;
    });
  }
}

// Adds sum ds_ij k_j to row t, over all i and j whose offset is t.
template <int kQ, int kEach>
__device__ void KeysToOffsets(float (&sums)[kEach][4], const float* ds, const float* k) {
  // Query m - 63 + g and key m - kEach y have offset t = kEach y + g.
  const int from = kEach * static_cast<int>(threadIdx.y);
  const int begin = max(from, kKeys - kEach), end = min(from + kKeys, kQ + kKeys - 1);
  for (int m = begin; m < end; ++m) {
    const int key = m - from;
    AddProducts(sums, k + key * kColumnsLd + threadIdx.x, [&](int g) {
      const int query = m - (kKeys - 1) + g;
      return query >= 0 && query < kQ ? ds[query * kKeysLd + key] : 0;
    });
  }
}

// Returns the index of a tile's offset t among a slot's offsets, or -1 if the slot has no place.
template <int kQ>
__device__ int PlaceOfOffset(const OffsetSums& to, const TilePlace& place, int t) {
  const int at = place.query - place.key - (kKeys - 1) + t - to.first;
  return t < kOffsets<kQ> && at >= 0 && at < to.count ? at : -1;
}

// Adds the sums of a tile's offsets to `slot`: [count, heads * head_dim], in columns c0 + x + 16 c
// of the head.
template <int kQ, int kEach>
__device__ void AddToSlot(float* slot, const float (&sums)[kEach][4], int c0, const OffsetSums& to,
                          const TilePlace& place, const AttentionParams& params) {
  for (int g = 0; g < kEach; ++g) {
    const int at = PlaceOfOffset<kQ>(to, place, kEach * threadIdx.y + g);
    if (at < 0) continue;
    float* const row =
        slot + at * params.width + static_cast<int64_t>(place.head) * params.head_dim;
    LATHE_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int column = c0 + threadIdx.x + kSide * c;
      if (column < params.head_dim) row[column] += sums[g][c];
    }
  }
}

// Adds the sums of ds by offset to `slot`: [count, heads].
template <int kQ>
__device__ void AddBiasToSlot(float* slot, const float* ds, const OffsetSums& to,
                              const TilePlace& place, int heads) {
  const int t = threadIdx.y * kSide + threadIdx.x;
  const int at = PlaceOfOffset<kQ>(to, place, t);
  if (at < 0) return;
  float sum = 0;
  for (int i = max(0, t - (kKeys - 1)); i < min(kQ, t + 1); ++i) {
    sum += ds[i * kKeysLd + i + (kKeys - 1) - t];
  }
  slot[static_cast<int64_t>(at) * heads + place.head] += sum;
}

}  // namespace lathe::cuda
