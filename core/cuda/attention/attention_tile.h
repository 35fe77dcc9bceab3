// Tiles of the plain attention kernels.
//
// A block has 16 x 16 threads. It works on kQ queries and 64 keys of one sequence and head, in
// float32. A tile has 16 keys from each quarter of the sequence. Thus one thread has the four keys
// that share a block of dropout's random words. With nb = ceil(keys / 4), column 16 w + b of the
// tile that starts at b0 is key w * nb + b0 + b.
#pragma once

#include <cstddef>
#include <iterator>
#include <type_traits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/attention/attention.h"
#include "lathe/core/cuda/attention/attention_shape.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"

#ifdef __CUDACC__
#define LATHE_UNROLL _Pragma("unroll")
#else
#define LATHE_UNROLL
#endif

namespace lathe::cuda {

// The lowest float, which is not above any score.
constexpr float kNoScore = -3.402823466e38f;

struct Sequence {
  int64_t key_row, query_row;  // the rows of the first key and the first query
  int32_t keys, quarter, queries;
  uint32_t sample, step;  // part of the key of dropout's random words
};

__device__ inline Sequence SequenceAt(const AttentionParams& params, int index) {
  Sequence s;
  s.key_row = params.cu_seqlens[index];
  s.keys = params.cu_seqlens[index + 1] - params.cu_seqlens[index];
  s.quarter = (s.keys + 3) / 4;
  s.query_row = params.first_query_only ? index : s.key_row;
  s.queries = params.first_query_only ? 1 : s.keys;
  s.sample = params.threshold > 0 ? static_cast<uint32_t>(params.sample_ids[index]) : 0;
  s.step = params.device_step != nullptr ? static_cast<uint32_t>(*params.device_step) : params.step;
  return s;
}

// Returns the key in row `r` of the tile of keys at b0, or -1 if there is none.
__device__ inline int KeyAt(const Sequence& s, int b0, int r) {
  const int b = b0 + r % kSide, key = r / kSide * s.quarter + b;
  return b < s.quarter && key < s.keys ? key : -1;
}

// Returns the random words of query `i` and the four keys of block b.
__device__ inline PhiloxBlock AttentionBits(const AttentionParams& params, const Sequence& s,
                                            int head, int i, int b) {
  return Philox4x32({{static_cast<uint32_t>(b), static_cast<uint32_t>(i), s.sample, s.step}},
                    params.key0, params.key1 + static_cast<uint32_t>(head) * 0x9E3779B9u);
}

// Loads 16 bytes of elements. The address is a multiple of 16.
__device__ inline uint4 LoadVector(const void* from) {
#ifdef __CUDACC__
  return *static_cast<const uint4*>(from);
#else
  uint4 x;
  std::memcpy(&x, from, sizeof(x));
  return x;
#endif
}
__device__ inline void StoreVector(void* to, uint4 x) {
#ifdef __CUDACC__
  *static_cast<uint4*>(to) = x;
#else
  std::memcpy(to, &x, sizeof(x));
#endif
}
__device__ inline void Widen(float* to, uint4 x, float) {
  to[0] = __uint_as_float(x.x), to[1] = __uint_as_float(x.y);
  to[2] = __uint_as_float(x.z), to[3] = __uint_as_float(x.w);
}
template <typename T>
__device__ inline void Widen(float* to, uint4 x, T) {
  const unsigned words[4] = {x.x, x.y, x.z, x.w};
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    T low, high;
    low.bits = static_cast<uint16_t>(words[i]);
    high.bits = static_cast<uint16_t>(words[i] >> 16);
    to[2 * i] = Load(low);
    to[2 * i + 1] = Load(high);
  }
}

// Copies rows of one head to `to`: [rows, kD] in shared memory. Row r is row row_of(r) of `from`,
// which points at the head's first column. Rows for which row_of(r) is -1 and columns from d on
// become 0.
template <int kD, typename T, typename RowOf>
__device__ void LoadTile(float* to, int rows, const T* from, const AttentionParams& params,
                         RowOf row_of) {
  const int thread = threadIdx.y * kSide + threadIdx.x, d = params.head_dim;
  constexpr int kPart = 16 / sizeof(T), kParts = kD / kPart;
  for (int at = thread; at < rows * kParts; at += kSide * kSide) {
    const int r = at / kParts, c = at % kParts * kPart;
    const int64_t row = row_of(r);
    float values[kPart];
    if (row >= 0 && params.aligned && c < d) {
      Widen(values, LoadVector(from + row * params.width + c), T());
    } else {
      LATHE_UNROLL
      for (int i = 0; i < kPart; ++i) {
        values[i] = row >= 0 && c + i < d ? Load(from[row * params.width + c + i]) : 0;
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < kPart; i += 4) {
      *reinterpret_cast<float4*>(to + r * kLd<kD> + c + i) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }
}

__device__ inline float4 LoadFour(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

// Adds the product of row y + 16 i of a and row x + 16 j of b, over d columns, to sums[i][j].
template <int kR, int kC>
__device__ void RowsTimesRows(float (&sums)[kR][kC], const float* a, const float* b, int ld,
                              int d) {
  a += threadIdx.y * ld;
  b += threadIdx.x * ld;
  for (int c = 0; c < d; c += 4) {
    float4 fours[kC];
    LATHE_UNROLL
    for (int j = 0; j < kC; ++j) fours[j] = LoadFour(b + j * kSide * ld + c);
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) {
      const float4 four = LoadFour(a + i * kSide * ld + c);
      LATHE_UNROLL
      for (int j = 0; j < kC; ++j) {
        sums[i][j] += four.x * fours[j].x;
        sums[i][j] += four.y * fours[j].y;
        sums[i][j] += four.z * fours[j].z;
        sums[i][j] += four.w * fours[j].w;
      }
    }
  }
}

// Adds the product of row y + 16 i of a: [queries, keys] and column x + 16 j of b: [keys, ld] to
// sums[i][j].
template <int kR, int kC>
__device__ void RowsTimesColumns(float (&sums)[kR][kC], const float* a, const float* b, int ld) {
  a += threadIdx.y * kKeysLd;
  b += threadIdx.x;
  for (int n = 0; n < kKeys; n += 4) {
    float4 fours[kR];
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) fours[i] = LoadFour(a + i * kSide * kKeysLd + n);
    LATHE_UNROLL
    for (int j = 0; j < kC; ++j) {
      const float* column = b + n * ld + j * kSide;
      LATHE_UNROLL
      for (int i = 0; i < kR; ++i) {
        sums[i][j] += fours[i].x * column[0];
        sums[i][j] += fours[i].y * column[ld];
        sums[i][j] += fours[i].z * column[2 * ld];
        sums[i][j] += fours[i].w * column[3 * ld];
      }
    }
  }
}

// Adds the product of column 4 y + i of a: [queries, keys] and column x + 16 j of b: [queries, ld]
// to sums[i][j].
template <int kC>
__device__ void ColumnsTimesColumns(float (&sums)[4][kC], const float* a, const float* b, int ld,
                                    int queries) {
  a += 4 * threadIdx.y;
  b += threadIdx.x;
  for (int n = 0; n < queries; ++n) {
    const float4 four = LoadFour(a + n * kKeysLd);
    LATHE_UNROLL
    for (int j = 0; j < kC; ++j) {
      const float x = b[n * ld + j * kSide];
      sums[0][j] += four.x * x;
      sums[1][j] += four.y * x;
      sums[2][j] += four.z * x;
      sums[3][j] += four.w * x;
    }
  }
}

// Returns the sum over the 16 threads that share y, to each of them. All lanes of the warp must
// call this.
__device__ inline float SumOverX(float x) {
  for (int by = kSide / 2; by > 0; by /= 2) x += __shfl_xor_sync(kFullWarp, x, by);
  return x;
}
// Returns the maximum over the 16 threads that share y. It skips NaN, which the exponentials then
// bring back.
__device__ inline float MaxOverX(float x) {
  for (int by = kSide / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, by));
  return x;
}

// Calls body(kD, kQ, kInTurns) with those of the tile as integral constants. The tile is one of
// kPlainTiles.
template <size_t kAt = 0, typename Body>
void WithPlainTile(const PlainTile& tile, Body body) {
  if constexpr (kAt < std::size(kPlainTiles)) {
    constexpr PlainTile kTile = kPlainTiles[kAt];
    if (tile != kTile) return WithPlainTile<kAt + 1>(tile, body);
    body(std::integral_constant<int, kTile.columns>(), std::integral_constant<int, kTile.queries>(),
         std::integral_constant<bool, kTile.in_turns>());
  }
}

// Returns the tile for these parameters on this device.
inline PlainTile PlainTileOf(const AttentionParams& params, bool backward) {
  return ChoosePlainTile(backward, params.head_dim, params.first_query_only,
                         SharedMemoryPerBlock());
}

// Returns the grid for tiles of `tile` rows. Each sequence has at most `longest` rows in each head.
inline dim3 AttentionGrid(const AttentionParams& params, int longest, int tile) {
  return dim3(static_cast<unsigned>(DivideUp(longest, tile)), static_cast<unsigned>(params.heads),
              static_cast<unsigned>(params.batch));
}

}  // namespace lathe::cuda
