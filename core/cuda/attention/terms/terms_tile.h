// Tiles of attention with terms: attention_tile.h's, except that the 64 keys of a tile are
// neighbours. The offsets between kQ queries and these keys are then kOffsets<kQ> numbers, and a
// thread's scores need few rows of a table. Query i and key j, both counted from the beginning of
// the tile, have offset t = i - j + 63.
#pragma once

#include "lathe/core/cuda/attention/attention_terms.h"
#include "lathe/core/cuda/attention/attention_tile.h"

namespace lathe::cuda {

constexpr int kColumnsLd = kLd<kColumns>;
static_assert(kColumnsLd == kKeysLd);

// A block's shared memory, of TermsBytes.
template <int kQ>
struct TermsRoom {
  float* a;       // [kQ, kColumnsLd]: rows of q or dout
  float* b;       // [64, kColumnsLd]: rows of k or v
  float* scores;  // [kQ, kKeysLd]
  float* bias;    // [kOffsets]: 0 without bias, NaN for a row that the tables don't have
  int* rows;      // [kOffsets]: -1 for none
  float* table;   // [kOffsets, kColumnsLd]
};
template <int kQ>
__device__ TermsRoom<kQ> RoomOf(float* shared) {
  TermsRoom<kQ> room;
  room.a = shared;
  room.b = room.a + kQ * kColumnsLd;
  room.scores = room.b + kKeys * kColumnsLd;
  room.bias = room.scores + kQ * kKeysLd;
  room.rows = reinterpret_cast<int*>(room.bias + kQ + kKeys);
  room.table = room.bias + 2 * (kQ + kKeys);
  return room;
}

// The place of a tile: the head, the first query and the first key.
struct TilePlace {
  int head, query, key;
};

__device__ inline bool Sees(const Sequence& s, int window, int query, int key) {
  const int offset = query - key;
  return query < s.queries && key < s.keys && offset <= window && -offset <= window;
}

// Returns the mask of dropout times its scale.
__device__ inline float MaskAt(const AttentionParams& params, const Sequence& s, int head,
                               int query, int key) {
  if (params.threshold == 0) return params.keep_scale;
  const int word = (key >= s.quarter) + (key >= 2 * s.quarter) + (key >= 3 * s.quarter);
  const PhiloxBlock bits = AttentionBits(params, s, head, query, key - word * s.quarter);
  const uint32_t low = word == 0 ? bits.v[0] : bits.v[1];
  const uint32_t high = word == 2 ? bits.v[2] : bits.v[3];
  return (word < 2 ? low : high) < params.threshold ? 0 : params.keep_scale;
}

// Copies up to 64 columns of rows to `to`: [rows, kColumnsLd]. `from` points at the first of `left`
// columns. LoadTile describes the rest.
template <typename T, typename RowOf>
__device__ void LoadColumns(float* to, int rows, const T* from, int64_t width, int left,
                            bool aligned, RowOf row_of) {
  AttentionParams part = {};
  part.width = width;
  part.head_dim = min(left, kColumns);
  part.aligned = aligned;
  LoadTile<kColumns>(to, rows, from, part, row_of);
}

// The matrices of one sequence and head, from their first row and column on. The functions load 64
// columns from column c0 on.
template <typename T>
struct HeadRows {
  const T* from;
  int64_t width;
  int head_dim;
  bool aligned;
  template <typename RowOf>
  __device__ void Load(float* to, int rows, int c0, RowOf row_of) const {
    LoadColumns(to, rows, from + c0, width, head_dim - c0, aligned, row_of);
  }
};
template <typename T>
__device__ HeadRows<T> HeadRowsOf(const T* matrix, int64_t first_row, int head,
                                  const AttentionParams& params) {
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  return {matrix + first_row * params.width + column, params.width, params.head_dim,
          params.aligned};
}
// Returns the head's columns of a table.
template <typename T>
__device__ HeadRows<T> TableOf(const void* table, int head, const AttentionTerms& terms,
                               const AttentionParams& params) {
  const int64_t column =
      terms.table_width == params.head_dim ? 0 : static_cast<int64_t>(head) * params.head_dim;
  return {static_cast<const T*>(table) + column, terms.table_width, params.head_dim,
          params.aligned};
}

// Sets the bias and the table row of each offset of a tile.
template <int kQ>
__device__ void LoadOffsets(const TermsRoom<kQ>& room, const TilePlace& place,
                            const AttentionTerms& terms, const AttentionParams& params) {
  const int thread = threadIdx.y * kSide + threadIdx.x;
  if (thread >= kOffsets<kQ>) return;
  const int offset = place.query - place.key - (kKeys - 1) + thread;
  int row = -1;
  float bias = 0;
  if (terms.rows != nullptr && offset >= -terms.origin && offset <= terms.origin) {
    row = terms.rows[offset + terms.origin];
    if (row < 0 || row >= terms.table_rows) {
      row = -1;
      bias = __uint_as_float(0x7fc00000);
    } else if (terms.bias != nullptr) {
      bias = terms.bias[static_cast<int64_t>(row) * params.heads + place.head];
    }
  }
  room.bias[thread] = bias;
  room.rows[thread] = row;
}

// Adds the product of a row and the table row of offset t to sums[i][j], over d columns. Here t is
// the offset of query y + 16 i and key x + 16 j. The row is that of the query, or of the key if
// kOfKeys.
template <bool kOfKeys, int kR>
__device__ void RowsTimesTable(float (&sums)[kR][4], const float* rows, const float* table, int d) {
  constexpr int kRows = kOfKeys ? 4 : kR, kTable = kR + 3;
  rows += (kOfKeys ? threadIdx.x : threadIdx.y) * kColumnsLd;
  table += (threadIdx.y + (kSide - 1) - threadIdx.x) * kColumnsLd;
  for (int c = 0; c < d; c += 4) {
    float4 fours[kTable];
    LATHE_UNROLL
    for (int n = 0; n < kTable; ++n) fours[n] = LoadFour(table + n * kSide * kColumnsLd + c);
    LATHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float4 four = LoadFour(rows + r * kSide * kColumnsLd + c);
      LATHE_UNROLL
      for (int other = 0; other < (kOfKeys ? kR : 4); ++other) {
        const int i = kOfKeys ? other : r, j = kOfKeys ? r : other, n = i - j + 3;
        sums[i][j] += four.x * fours[n].x;
        sums[i][j] += four.y * fours[n].y;
        sums[i][j] += four.z * fours[n].z;
        sums[i][j] += four.w * fours[n].w;
      }
    }
  }
}

// Sets scores[i][w] to the score of query y + 16 i and key x + 16 w: the scaled products plus bias.
// Loads q only if `load_q`, since room.a may have its columns already.
template <typename T, int kQ, int kR>
__device__ void Scores(float (&scores)[kR][4], const TermsRoom<kQ>& room, const HeadRows<T>& q,
                       const HeadRows<T>& k, bool load_q, const Sequence& s, const TilePlace& place,
                       const AttentionTerms& terms, const AttentionParams& params) {
  const auto query_at = [&](int r) { return place.query + r < s.queries ? place.query + r : -1; };
  const auto key_at = [&](int r) { return place.key + r < s.keys ? place.key + r : -1; };
  const auto row_at = [&](int r) { return room.rows[r]; };
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) scores[i][w] = 0;
  }
  __syncthreads();
  LoadOffsets(room, place, terms, params);
  for (int c0 = 0; c0 < params.head_dim; c0 += kColumns) {
    const int d = min(params.head_dim - c0, kColumns);
    __syncthreads();
    if (load_q) q.Load(room.a, kQ, c0, query_at);
    k.Load(room.b, kKeys, c0, key_at);
    if (terms.keys != nullptr) {
      TableOf<T>(terms.keys, place.head, terms, params).Load(room.table, kOffsets<kQ>, c0, row_at);
    }
    __syncthreads();
    RowsTimesRows(scores, room.a, room.b, kColumnsLd, d);
    if (terms.keys != nullptr) RowsTimesTable<false>(scores, room.a, room.table, d);
    if (terms.queries == nullptr) continue;
    __syncthreads();
    TableOf<T>(terms.queries, place.head, terms, params).Load(room.table, kOffsets<kQ>, c0, row_at);
    __syncthreads();
    RowsTimesTable<true>(scores, room.b, room.table, d);
  }
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const int offset = static_cast<int>(threadIdx.y) + kSide * i + (kKeys - 1) -
                         static_cast<int>(threadIdx.x) - kSide * w;
      scores[i][w] = scores[i][w] * params.scale + room.bias[offset];
    }
  }
}

// The rows, queries or keys, from which a tile is made: [begin, end). begin is the first row of a
// tile.
struct Span {
  int begin, end;
};
// Returns the span of rows that see, or are seen by, `tile` rows from row `first` on. There are
// `rows` rows, in tiles of `other_tile`.
__device__ inline Span SpanOf(int first, int tile, int window, int rows, int other_tile) {
  return {max(0, first - window) / other_tile * other_tile, min(rows, first + tile + window)};
}

// Calls body(kD, kQ) with the columns and the queries of a tile as integral constants.
template <typename Body>
void WithTermsTile(const AttentionParams& params, Body body) {
  const auto with_queries = [&](auto kd) {
    if (params.first_query_only) return body(kd, std::integral_constant<int, kFewQueries>());
    body(kd, std::integral_constant<int, kManyQueries>());
  };
  if (params.head_dim <= 64) return with_queries(std::integral_constant<int, 64>());
  if (params.head_dim <= 128) return with_queries(std::integral_constant<int, 128>());
  with_queries(std::integral_constant<int, 256>());
}
inline size_t TermsBytesOf(const AttentionTerms& terms, int queries) {
  return TermsBytes(queries, terms.keys != nullptr || terms.queries != nullptr);
}

}  // namespace lathe::cuda
