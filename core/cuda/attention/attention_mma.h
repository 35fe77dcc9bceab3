// Tiles of the attention kernels for tensor cores: bfloat16 and float16, head_dim up to 128.
//
// A block has four warps. Each warp has 16 rows of the left operand, queries or keys, and all
// columns of a tile. Scores stay in registers, since one product's result is the next one's operand
// in the same warp. Keys are ordered as in attention_tile.h. So a thread has all four keys that
// share a block of dropout's random words, or two of them.
#pragma once

#include "lathe/core/cuda/async_copy.h"
#include "lathe/core/cuda/attention/attention_tile.h"
#include "lathe/core/cuda/mma.h"

namespace lathe::cuda {

constexpr int kWarps = 4, kWarpRows = 16;
constexpr int kTileRows = kWarps * kWarpRows;

// The row stride of a [rows, kD] tile in shared memory, in elements. With this padding, 16 bytes
// from each of eight rows lie in different banks.
template <int kD>
constexpr int kNarrowLd = kD + 8;

constexpr float kLog2E = 1.44269504f;

// Copies rows of one head to `to`: [rows, kD] in shared memory. Row r is row row_of(r) of `from`,
// which points at the head's first column. Rows for which row_of(r) is -1 and columns from head_dim
// on become 0. The copies belong to the thread's next group.
template <int kD, typename T, typename RowOf>
__device__ void LoadNarrowTile(T* to, int rows, const T* from, const AttentionParams& params,
                               RowOf row_of) {
  constexpr int kParts = kD / 8;
  for (int at = threadIdx.x; at < rows * kParts; at += kWarps * 32) {
    const int r = at / kParts, c = at % kParts * 8;
    const int64_t row = row_of(r);
    const bool there = row >= 0 && c < params.head_dim;
    const T* x = there ? from + row * params.width + c : from;
    if (params.aligned) {
      CopyAsync(to + r * kNarrowLd<kD> + c, x, there);
      continue;
    }
    uint32_t words[4] = {};
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (there && c + i < params.head_dim) {
        words[i / 2] |= static_cast<uint32_t>(x[i].bits) << 16 * (i % 2);
      }
    }
    StoreVector(to + r * kNarrowLd<kD> + c, make_uint4(words[0], words[1], words[2], words[3]));
  }
}

// Writes this warp's 16 rows of `sums` times `factors` to the rows row_of(0) to row_of(15) of `to`,
// without those that are -1. They pass through the warp's own rows of `tile`, which no other warp
// reads.
template <int kD, typename T, typename RowOf>
__device__ void StoreWarpRows(T* to, const float (&sums)[kD / 8][4], const float (&factors)[2],
                              T* tile, const AttentionParams& params, RowOf row_of) {
  constexpr int kLd8 = kNarrowLd<kD>, kParts = kD / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  __syncwarp();
  LATHE_UNROLL
  for (int n = 0; n < kD / 8; ++n) {
    LATHE_UNROLL
    for (int r = 0; r < 2; ++r) {
      T* at = tile + (g + 8 * r) * kLd8 + 8 * n + 2 * t;
      Store(at[0], sums[n][2 * r] * factors[r]);
      Store(at[1], sums[n][2 * r + 1] * factors[r]);
    }
  }
  __syncwarp();
  for (int at = lane; at < kWarpRows * kParts; at += 32) {
    const int r = at / kParts, c = at % kParts * 8;
    const int64_t row = row_of(r);
    if (row < 0 || c >= params.head_dim) continue;
    const T* from = tile + r * kLd8 + c;
    T* x = to + row * params.width + c;
    if (params.aligned) {
      StoreVector(x, LoadVector(from));
    } else {
      for (int i = 0; i < 8 && c + i < params.head_dim; ++i) x[i] = from[i];
    }
  }
}

// Assigns (16 rows of a) (kN rows of b)^T to `sums`; the rows have kD columns.
template <int kN, int kD, typename T>
__device__ void Scores(float (&sums)[kN / 8][4], const T* a, const T* b) {
  LATHE_UNROLL
  for (int n = 0; n < kN / 8; ++n) {
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
  }
  LATHE_UNROLL
  for (int k = 0; k < kD; k += 16) {
    uint32_t left[4];
    LoadLeft(left, a, kNarrowLd<kD>, 0, k);
    LATHE_UNROLL
    for (int n = 0; n < kN / 8; n += 2) {
      uint32_t right[4];
      LoadRightTransposed(right, b, kNarrowLd<kD>, k, 8 * n);
      Mma<T>(sums[n], left, right[0], right[1]);
      Mma<T>(sums[n + 1], left, right[2], right[3]);
    }
  }
}

// Adds (16 rows of p, rounded to T) (kN rows of b) to `sums`; b has kD columns.
template <int kN, int kD, typename T>
__device__ void AddProduct(float (&sums)[kD / 8][4], const float (&p)[kN / 8][4], const T* b) {
  LATHE_UNROLL
  for (int k = 0; k < kN / 8; k += 2) {
    const uint32_t left[4] = {Pack<T>(p[k][0], p[k][1]), Pack<T>(p[k][2], p[k][3]),
                              Pack<T>(p[k + 1][0], p[k + 1][1]), Pack<T>(p[k + 1][2], p[k + 1][3])};
    LATHE_UNROLL
    for (int n = 0; n < kD / 8; n += 2) {
      uint32_t right[4];
      LoadRight(right, b, kNarrowLd<kD>, 8 * k, 8 * n);
      Mma<T>(sums[n], left, right[0], right[1]);
      Mma<T>(sums[n + 1], left, right[2], right[3]);
    }
  }
}

// Returns a bit for each of this thread's scores that dropout drops. The rows are queries `query`
// and query + 8, the columns are the tile of keys at b0. Bit 4 n + i belongs to score [n][i].
__device__ inline uint32_t DroppedOfQueries(const AttentionParams& params, const Sequence& s,
                                            int head, int query, int b0) {
  const int t = threadIdx.x % 4;
  uint32_t dropped = 0;
  if (params.threshold == 0) return dropped;
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    LATHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const PhiloxBlock bits =
          AttentionBits(params, s, head, query + i / 2 * 8, b0 + 8 * half + 2 * t + i % 2);
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) {
        dropped |= uint32_t{bits.v[w] < params.threshold} << (4 * (2 * w + half) + i);
      }
    }
  }
  return dropped;
}

// Returns true if this thread's score [n][i] in the tile at b0 has a key. The score's column is
// 8 n + 2 (lane % 4) + i % 2.
__device__ inline bool IsKey(const Sequence& s, int b0, int n, int i) {
  return KeyAt(s, b0, 8 * n + 2 * (threadIdx.x % 4) + i % 2) >= 0;
}

// Calls body(kD), an integral constant: head_dim rounded up to a multiple of 32.
template <typename Body>
void WithNarrowTile(const AttentionParams& params, Body body) {
  using std::integral_constant;
  if (params.head_dim <= 32) return body(integral_constant<int, 32>());
  if (params.head_dim <= 64) return body(integral_constant<int, 64>());
  if (params.head_dim <= 96) return body(integral_constant<int, 96>());
  body(integral_constant<int, 128>());
}

}  // namespace lathe::cuda
