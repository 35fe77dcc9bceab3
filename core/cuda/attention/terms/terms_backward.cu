// The backward kernels of attention with terms. One kernel computes dQ and sums for the gradients
// of the tables, another dK and dV. A single thread adds up each sum, in a fixed order.
#include "lathe/core/cuda/attention/terms/terms_products.h"

namespace lathe::cuda {
namespace {

// Adds dO V^T to dp[i][w], that of query y + 16 i and key x + 16 w. Overwrites the rows in the
// room.
template <typename T, int kQ, int kR>
__device__ void ProbabilityGradients(float (&dp)[kR][4], const TermsRoom<kQ>& room,
                                     const HeadRows<T>& dout, const HeadRows<T>& v,
                                     const Sequence& s, const TilePlace& place) {
  for (int c0 = 0; c0 < v.head_dim; c0 += kColumns) {
    __syncthreads();
    dout.Load(room.a, kQ, c0,
              [&](int r) { return place.query + r < s.queries ? place.query + r : -1; });
    v.Load(room.b, kKeys, c0, [&](int r) { return place.key + r < s.keys ? place.key + r : -1; });
    __syncthreads();
    RowsTimesRows(dp, room.a, room.b, kColumnsLd, min(v.head_dim - c0, kColumns));
  }
}

// Turns p from scores and ds from dO V^T into
//   P = exp(score - lse);  p = m P;  ds = P (m (dO V^T) - dots)
// Here m is the dropout mask times its scale. Pairs that don't see each other get 0. lse and dots
// are those of this thread's rows.
template <int kR>
__device__ void TermsProbabilities(float (&p)[kR][4], float (&ds)[kR][4], const float (&lse)[kR],
                                   const float (&dots)[kR], const Sequence& s,
                                   const TilePlace& place, int window,
                                   const AttentionParams& params) {
  const int x = threadIdx.x, y = threadIdx.y;
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int query = place.query + y + kSide * i;
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const int key = place.key + x + kSide * w;
      const bool sees = Sees(s, window, query, key);
      const float mask = MaskAt(params, s, place.head, query, key);
      const float probability = sees ? expf(p[i][w] - lse[i]) : 0;
      p[i][w] = probability * mask;
      ds[i][w] = sees ? probability * (mask * ds[i][w] - dots[i]) : 0;
    }
  }
}

template <int kR>
__device__ void StoreScores(float* to, const float (&from)[kR][4]) {
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      to[(threadIdx.y + kSide * i) * kKeysLd + threadIdx.x + kSide * w] = from[i][w];
    }
  }
}

// Computes sum_c dO_ic O_ic for query y + 16 i of a tile, and stores it in `dots`. Returns the
// queries' lse, too.
template <typename T, int kR>
__device__ void LoadRowNumbers(float (&dot)[kR], float (&log_sum)[kR], float* dots, const T* dout,
                               const T* out, const float* lse, const Sequence& s, int head,
                               int first, const AttentionParams& params) {
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int query = first + threadIdx.y + kSide * i;
    const bool there = query < s.queries;
    const int64_t row = s.query_row + query;
    const int64_t from = row * params.width + static_cast<int64_t>(head) * params.head_dim;
    float part = 0;
    for (int c = threadIdx.x; there && c < params.head_dim; c += kSide) {
      part += Load(out[from + c]) * Load(dout[from + c]);
    }
    dot[i] = SumOverX(part);
    log_sum[i] = there ? lse[row * params.heads + head] : 0;
    if (there && threadIdx.x == 0) dots[row * params.heads + head] = dot[i];
  }
}

// Adds the part of one tile to dQ and to a slot's sums. room.scores has ds.
template <typename T, int kParts, int kQ, int kR>
__device__ void AddTile(float (&dq)[kParts][kR][4], const TermsRoom<kQ>& room, const HeadRows<T>& q,
                        const HeadRows<T>& k, const OffsetSums& slot, const Sequence& s,
                        const TilePlace& place, const AttentionTerms& terms,
                        const AttentionParams& params) {
  LATHE_UNROLL
  for (int n = 0; n < kParts; ++n) {
    const int c0 = n * kColumns;
    if (c0 >= params.head_dim) break;
    __syncthreads();
    k.Load(room.b, kKeys, c0, [&](int r) { return place.key + r < s.keys ? place.key + r : -1; });
    if (terms.keys != nullptr) {
      TableOf<T>(terms.keys, place.head, terms, params)
          .Load(room.table, kOffsets<kQ>, c0, [&](int r) { return room.rows[r]; });
    }
    if (slot.keys != nullptr) {
      q.Load(room.a, kQ, c0,
             [&](int r) { return place.query + r < s.queries ? place.query + r : -1; });
    }
    __syncthreads();
    KeysToQueries(dq[n], room.scores, room.b);
    if (terms.keys != nullptr) TableToQueries(dq[n], room.scores, room.table);
    if (slot.keys != nullptr) {
      float sums[kOffsetsEach<kR>][4] = {};
      QueriesToOffsets<kQ>(sums, room.scores, room.a);
      AddToSlot<kQ>(slot.keys, sums, c0, slot, place, params);
    }
    if (slot.queries != nullptr) {
      float sums[kOffsetsEach<kR>][4] = {};
      KeysToOffsets<kQ>(sums, room.scores, room.b);
      AddToSlot<kQ>(slot.queries, sums, c0, slot, place, params);
    }
  }
  if (slot.bias != nullptr) AddBiasToSlot<kQ>(slot.bias, room.scores, slot, place, params.heads);
}

// Returns `sums` with pointers to the slot's part.
__device__ inline OffsetSums SlotAt(OffsetSums sums, int slot, const AttentionParams& params) {
  const int64_t offsets = static_cast<int64_t>(slot) * sums.count;
  if (sums.bias != nullptr) sums.bias += offsets * params.heads;
  if (sums.keys != nullptr) sums.keys += offsets * params.width;
  if (sums.queries != nullptr) sums.queries += offsets * params.width;
  return sums;
}

// A block takes the tiles of queries blockIdx.x, blockIdx.x + gridDim.x and so on of a head. Each
// sequence has `tiles` of them. It computes dots and
//   dQ = scale (dS K + sum_j dS_ij keys[row])
template <typename T, int kD, int kQ>
__global__ void __launch_bounds__(kSide* kSide)
    TermsQueriesKernel(T* dq, OffsetSums sums, float* dots, const T* dout, const T* out,
                       const float* lse, const T* q, const T* k, const T* v, int tiles,
                       AttentionTerms terms, AttentionParams params) {
  constexpr int kR = kQ / kSide, kParts = kD / kColumns;
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  const TermsRoom<kQ> room = RoomOf<kQ>(DynamicShared<float>());
  const OffsetSums slot = SlotAt(sums, blockIdx.x, params);
  const int64_t items = static_cast<int64_t>(params.batch) * tiles;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Sequence s = SequenceAt(params, static_cast<int>(item / tiles));
    const int first = static_cast<int>(item % tiles) * kQ;
    if (first >= s.queries) continue;
    const HeadRows<T> q_rows = HeadRowsOf(q, s.query_row, head, params),
                      dout_rows = HeadRowsOf(dout, s.query_row, head, params),
                      k_rows = HeadRowsOf(k, s.key_row, head, params),
                      v_rows = HeadRowsOf(v, s.key_row, head, params);
    float dot[kR], log_sum[kR], result[kParts][kR][4] = {};
    LoadRowNumbers(dot, log_sum, dots, dout, out, lse, s, head, first, params);
    const Span keys = SpanOf(first, min(kQ, s.queries - first), terms.window, s.keys, kKeys);
    for (int key = keys.begin; key < keys.end; key += kKeys) {
      const TilePlace place = {head, first, key};
      float p[kR][4], ds[kR][4] = {};
      Scores<T, kQ>(p, room, q_rows, k_rows, true, s, place, terms, params);
      ProbabilityGradients<T, kQ>(ds, room, dout_rows, v_rows, s, place);
      TermsProbabilities(p, ds, log_sum, dot, s, place, terms.window, params);
      StoreScores(room.scores, ds);
      AddTile<T>(result, room, q_rows, k_rows, slot, s, place, terms, params);
    }
    LATHE_UNROLL
    for (int r = 0; r < kR; ++r) {
      const int query = first + kR * y + r;
      if (query >= s.queries) continue;
      T* const to =
          dq + (s.query_row + query) * params.width + static_cast<int64_t>(head) * params.head_dim;
      LATHE_UNROLL
      for (int n = 0; n < kParts; ++n) {
        LATHE_UNROLL
        for (int c = 0; c < 4; ++c) {
          const int column = n * kColumns + x + kSide * c;
          if (column < params.head_dim) Store(to[column], result[n][r][c] * params.scale);
        }
      }
    }
  }
}

// A block takes 64 keys of a head. It computes, with P' for P after dropout,
//   dV = P'^T dO;  dK = scale (dS^T Q + sum_i dS_ij queries[row])
// A thread has keys 4 y to 4 y + 3. It is one function because its accumulators stay in registers,
// and its tiles in shared memory, through all steps.
template <typename T, int kD, int kQ>
__global__ void __launch_bounds__(kSide* kSide)
    TermsKeysKernel(T* dk, T* dv, const float* dots, const T* dout, const float* lse, const T* q,
                    const T* k, const T* v, AttentionTerms terms, AttentionParams params) {
  constexpr int kR = kQ / kSide, kParts = kD / kColumns;
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int key = blockIdx.x * kKeys;
  if (key >= s.keys) return;
  const TermsRoom<kQ> room = RoomOf<kQ>(DynamicShared<float>());
  const HeadRows<T> q_rows = HeadRowsOf(q, s.query_row, head, params),
                    dout_rows = HeadRowsOf(dout, s.query_row, head, params),
                    k_rows = HeadRowsOf(k, s.key_row, head, params),
                    v_rows = HeadRowsOf(v, s.key_row, head, params);
  float dkeys[kParts][4][4] = {}, dvalues[kParts][4][4] = {};
  const Span queries = SpanOf(key, min(kKeys, s.keys - key), terms.window, s.queries, kQ);
  for (int first = queries.begin; first < queries.end; first += kQ) {
    const auto query_at = [&](int r) { return first + r < s.queries ? first + r : -1; };
    const TilePlace place = {head, first, key};
    float dot[kR], log_sum[kR], p[kR][4], ds[kR][4] = {};
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) {
      const int query = first + y + kSide * i;
      const int64_t at = (s.query_row + query) * params.heads + head;
      dot[i] = query < s.queries ? dots[at] : 0;
      log_sum[i] = query < s.queries ? lse[at] : 0;
    }
    Scores<T, kQ>(p, room, q_rows, k_rows, true, s, place, terms, params);
    ProbabilityGradients<T, kQ>(ds, room, dout_rows, v_rows, s, place);
    TermsProbabilities(p, ds, log_sum, dot, s, place, terms.window, params);
    StoreScores(room.scores, p);
    LATHE_UNROLL
    for (int n = 0; n < kParts; ++n) {
      if (n * kColumns >= params.head_dim) break;
      __syncthreads();
      dout_rows.Load(room.a, kQ, n * kColumns, query_at);
      __syncthreads();
      ColumnsTimesColumns(dvalues[n], room.scores, room.a, kColumnsLd, kQ);
    }
    __syncthreads();
    StoreScores(room.scores, ds);
    LATHE_UNROLL
    for (int n = 0; n < kParts; ++n) {
      const int c0 = n * kColumns;
      if (c0 >= params.head_dim) break;
      __syncthreads();
      q_rows.Load(room.a, kQ, c0, query_at);
      if (terms.queries != nullptr) {
        TableOf<T>(terms.queries, head, terms, params)
            .Load(room.table, kOffsets<kQ>, c0, [&](int r) { return room.rows[r]; });
      }
      __syncthreads();
      ColumnsTimesColumns(dkeys[n], room.scores, room.a, kColumnsLd, kQ);
      if (terms.queries != nullptr) TableToKeys<kQ>(dkeys[n], room.scores, room.table);
    }
  }
  LATHE_UNROLL
  for (int r = 0; r < 4; ++r) {
    if (key + 4 * y + r >= s.keys) continue;
    const int64_t to =
        (s.key_row + key + 4 * y + r) * params.width + static_cast<int64_t>(head) * params.head_dim;
    LATHE_UNROLL
    for (int n = 0; n < kParts; ++n) {
      LATHE_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int column = n * kColumns + x + kSide * c;
        if (column >= params.head_dim) continue;
        Store(dk[to + column], dkeys[n][r][c] * params.scale);
        Store(dv[to + column], dvalues[n][r][c]);
      }
    }
  }
}

}  // namespace

template <typename T>
void TermsAttentionBackward(T* dq, T* dk, T* dv, const TableGradients& tables, float* dots,
                            const OffsetSums& sums, const T* dout, const T* out, const float* lse,
                            const T* q, const T* k, const T* v, const AttentionTerms& terms,
                            const AttentionParams& params) {
  WithTermsTile(params, [&](auto kd, auto kq) {
    constexpr int kD = kd, kQ = kq;
    const int longest = params.first_query_only ? 1 : params.max_seqlen;
    const dim3 block(kSide, kSide);
    LATHE_LAUNCH((TermsQueriesKernel<T, kD, kQ>),
                 dim3(static_cast<unsigned>(sums.slots), static_cast<unsigned>(params.heads)),
                 block, TermsBytesOf(terms, kQ), dq, sums, dots, dout, out, lse, q, k, v,
                 DivideUp(longest, kQ), terms, params);
    LATHE_LAUNCH((TermsKeysKernel<T, kD, kQ>), AttentionGrid(params, params.max_seqlen, kKeys),
                 block, TermsBytesOf(terms, kQ), dk, dv, dots, dout, lse, q, k, v, terms, params);
  });
  SumsToTables<T>(tables, sums, terms, params);
}

#define LATHE_INSTANTIATE(T)                                                            \
  template void TermsAttentionBackward<T>(                                              \
      T*, T*, T*, const TableGradients&, float*, const OffsetSums&, const T*, const T*, \
      const float*, const T*, const T*, const T*, const AttentionTerms&, const AttentionParams&);
LATHE_INSTANTIATE(float)
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
#undef LATHE_INSTANTIATE

}  // namespace lathe::cuda
