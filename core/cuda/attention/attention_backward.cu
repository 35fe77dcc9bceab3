// The plain backward kernels of attention. One kernel computes dQ, another dK and dV, so that a
// single thread adds up each sum in a fixed order.
#include "lathe/core/cuda/attention/attention_tile.h"

namespace lathe::cuda {
namespace {

// A block's shared memory (PlainBackwardBytes) holds q and dout: [kQ, kD], k and v: [64, kD], and
// one or two matrices of [kQ, 64]. If kInTurns, q shares its place with dout, and k with v. Each of
// them is then loaded again whenever it is needed next.

// Turns this thread's part of a tile from p = Q K^T and ds = dO V^T into
//   P = exp(Q K^T / sqrt(d) - lse);  p = m P;  ds = P (m (dO V^T) - dots) / sqrt(d)
// Here m is the dropout mask times its scale. Elements without a key or a query become 0. lse and
// dots are those of this thread's rows.
template <int kR>
__device__ void Probabilities(float (&p)[kR][4], float (&ds)[kR][4], const float (&lse)[kR],
                              const float (&dots)[kR], const Sequence& s, int head, int first,
                              int b0, const AttentionParams& params) {
  const int x = threadIdx.x, y = threadIdx.y;
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int query = first + y + kSide * i;
    PhiloxBlock bits = {};
    if (params.threshold > 0) bits = AttentionBits(params, s, head, query, b0 + x);
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const bool there = query < s.queries && KeyAt(s, b0, x + kSide * w) >= 0;
      const float mask =
          params.threshold > 0 && bits.v[w] < params.threshold ? 0 : params.keep_scale;
      const float probability = there ? expf(p[i][w] * params.scale - lse[i]) : 0;
      p[i][w] = probability * mask;
      ds[i][w] = there ? probability * (mask * ds[i][w] - dots[i]) * params.scale : 0;
    }
  }
}

// A block takes kQ queries of a head. It computes dots and dQ = dS K. It is one function because
// its accumulators stay in registers, and its tiles in shared memory, through all steps.
template <typename T, int kD, int kQ, bool kInTurns>
__global__ void __launch_bounds__(kSide* kSide)
    QueriesKernel(T* dq, float* dots, const T* dout, const T* out, const float* lse, const T* q,
                  const T* k, const T* v, AttentionParams params) {
  constexpr int kR = kQ / kSide, kC = kD / kSide;
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int first = blockIdx.x * kQ;
  if (first >= s.queries) return;
  float* q_tile = DynamicShared<float>();
  float* dout_tile = q_tile + (kInTurns ? 0 : kQ * kLd<kD>);
  float* k_tile = dout_tile + kQ * kLd<kD>;
  float* v_tile = k_tile + (kInTurns ? 0 : kKeys * kLd<kD>);
  float* ds_tile = v_tile + kKeys * kLd<kD>;
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  const int64_t q_from = s.query_row * params.width + column;
  const auto query_at = [&](int r) { return first + r < s.queries ? first + r : -1; };
  if constexpr (!kInTurns) LoadTile<kD>(q_tile, kQ, q + q_from, params, query_at);
  LoadTile<kD>(dout_tile, kQ, dout + q_from, params, query_at);
  __syncthreads();
  float dot[kR], log_sum[kR], result[kR][kC] = {};
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int r = y + kSide * i;
    const bool there = first + r < s.queries;
    const int64_t row = s.query_row + first + r;
    float part = 0;
    if (there) {
      const T* o = out + row * params.width + column;
      for (int c = x; c < params.head_dim; c += kSide) {
        part += Load(o[c]) * dout_tile[r * kLd<kD> + c];
      }
    }
    dot[i] = SumOverX(part);
    log_sum[i] = there ? lse[row * params.heads + head] : 0;
    if (there && x == 0) dots[row * params.heads + head] = dot[i];
  }
  for (int b0 = 0; b0 < s.quarter; b0 += kSide) {
    const auto key_at = [&](int r) { return KeyAt(s, b0, r); };
    const int64_t kv_from = s.key_row * params.width + column;
    __syncthreads();
    if constexpr (kInTurns) LoadTile<kD>(q_tile, kQ, q + q_from, params, query_at);
    LoadTile<kD>(k_tile, kKeys, k + kv_from, params, key_at);
    if constexpr (!kInTurns) LoadTile<kD>(v_tile, kKeys, v + kv_from, params, key_at);
    __syncthreads();
    float p[kR][4] = {}, ds[kR][4] = {};
    RowsTimesRows(p, q_tile, k_tile, kLd<kD>, params.head_dim);
    if constexpr (kInTurns) {
      __syncthreads();
      LoadTile<kD>(dout_tile, kQ, dout + q_from, params, query_at);
      LoadTile<kD>(v_tile, kKeys, v + kv_from, params, key_at);
      __syncthreads();
    }
    RowsTimesRows(ds, dout_tile, v_tile, kLd<kD>, params.head_dim);
    Probabilities(p, ds, log_sum, dot, s, head, first, b0, params);
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) {
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) ds_tile[(y + kSide * i) * kKeysLd + x + kSide * w] = ds[i][w];
    }
    if constexpr (kInTurns) {
      __syncthreads();
      LoadTile<kD>(k_tile, kKeys, k + kv_from, params, key_at);
    }
    __syncthreads();
    RowsTimesColumns(result, ds_tile, k_tile, kLd<kD>);
  }
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int query = first + y + kSide * i;
    if (query >= s.queries) continue;
    LATHE_UNROLL
    for (int c = 0; c < kC; ++c) {
      const int at = x + kSide * c;
      if (at < params.head_dim) Store(dq[q_from + query * params.width + at], result[i][c]);
    }
  }
}

// A block takes 64 keys of a head. It computes dV = P'^T dO and dK = dS^T Q, where P' is P after
// dropout. The threads with threadIdx.y = y have rows 4 y to 4 y + 3. It is one function because
// its accumulators stay in registers, and its tiles in shared memory, through all steps.
template <typename T, int kD, int kQ, bool kInTurns>
__global__ void __launch_bounds__(kSide* kSide)
    KeysKernel(T* dk, T* dv, const float* dots, const T* dout, const float* lse, const T* q,
               const T* k, const T* v, AttentionParams params) {
  constexpr int kR = kQ / kSide, kC = kD / kSide;
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int b0 = blockIdx.x * kSide;
  if (b0 >= s.quarter) return;
  float* q_tile = DynamicShared<float>();
  float* dout_tile = q_tile + (kInTurns ? 0 : kQ * kLd<kD>);
  float* k_tile = dout_tile + kQ * kLd<kD>;
  float* v_tile = k_tile + (kInTurns ? 0 : kKeys * kLd<kD>);
  float* p_tile = v_tile + kKeys * kLd<kD>;
  float* ds_tile = p_tile + kQ * kKeysLd;
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  const int64_t q_from = s.query_row * params.width + column;
  const int64_t kv_from = s.key_row * params.width + column;
  const auto key_at = [&](int r) { return KeyAt(s, b0, r); };
  if constexpr (!kInTurns) {
    LoadTile<kD>(k_tile, kKeys, k + kv_from, params, key_at);
    LoadTile<kD>(v_tile, kKeys, v + kv_from, params, key_at);
  }
  float dkeys[4][kC] = {}, dvalues[4][kC] = {};
  for (int first = 0; first < s.queries; first += kQ) {
    const auto query_at = [&](int r) { return first + r < s.queries ? first + r : -1; };
    __syncthreads();
    LoadTile<kD>(q_tile, kQ, q + q_from, params, query_at);
    if constexpr (kInTurns) {
      LoadTile<kD>(k_tile, kKeys, k + kv_from, params, key_at);
    } else {
      LoadTile<kD>(dout_tile, kQ, dout + q_from, params, query_at);
    }
    __syncthreads();
    float dot[kR], log_sum[kR], p[kR][4] = {}, ds[kR][4] = {};
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) {
      const int query = first + y + kSide * i;
      const int64_t at = (s.query_row + query) * params.heads + head;
      dot[i] = query < s.queries ? dots[at] : 0;
      log_sum[i] = query < s.queries ? lse[at] : 0;
    }
    RowsTimesRows(p, q_tile, k_tile, kLd<kD>, params.head_dim);
    if constexpr (kInTurns) {
      __syncthreads();
      LoadTile<kD>(dout_tile, kQ, dout + q_from, params, query_at);
      LoadTile<kD>(v_tile, kKeys, v + kv_from, params, key_at);
      __syncthreads();
    }
    RowsTimesRows(ds, dout_tile, v_tile, kLd<kD>, params.head_dim);
    Probabilities(p, ds, log_sum, dot, s, head, first, b0, params);
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) {
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) {
        const int at = (y + kSide * i) * kKeysLd + x + kSide * w;
        p_tile[at] = p[i][w];
        ds_tile[at] = ds[i][w];
      }
    }
    __syncthreads();
    ColumnsTimesColumns(dvalues, p_tile, dout_tile, kLd<kD>, kQ);
    if constexpr (kInTurns) {
      __syncthreads();
      LoadTile<kD>(q_tile, kQ, q + q_from, params, query_at);
      __syncthreads();
    }
    ColumnsTimesColumns(dkeys, ds_tile, q_tile, kLd<kD>, kQ);
  }
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int key = KeyAt(s, b0, 4 * y + i);
    if (key < 0) continue;
    LATHE_UNROLL
    for (int c = 0; c < kC; ++c) {
      const int at = x + kSide * c;
      if (at >= params.head_dim) continue;
      Store(dk[kv_from + key * params.width + at], dkeys[i][c]);
      Store(dv[kv_from + key * params.width + at], dvalues[i][c]);
    }
  }
}

}  // namespace

template <typename T>
void PlainAttentionBackward(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                            const float* lse, const T* q, const T* k, const T* v,
                            const AttentionParams& params) {
  const PlainTile tile = PlainTileOf(params, true);
  WithPlainTile(tile, [&](auto kd, auto kq, auto in_turns) {
    constexpr int kD = kd, kQ = kq;
    constexpr bool kInTurns = in_turns;
    const int longest = params.first_query_only ? 1 : params.max_seqlen;
    LATHE_LAUNCH((QueriesKernel<T, kD, kQ, kInTurns>), AttentionGrid(params, longest, kQ),
                 dim3(kSide, kSide), PlainBackwardBytes(tile, 1), dq, dots, dout, out, lse, q, k, v,
                 params);
    LATHE_LAUNCH((KeysKernel<T, kD, kQ, kInTurns>), AttentionGrid(params, params.max_seqlen, kKeys),
                 dim3(kSide, kSide), PlainBackwardBytes(tile, 2), dk, dv, dots, dout, lse, q, k, v,
                 params);
  });
}

#define LATHE_INSTANTIATE(T)                                                                    \
  template void PlainAttentionBackward<T>(T*, T*, T*, float*, const T*, const T*, const float*, \
                                          const T*, const T*, const T*, const AttentionParams&);
LATHE_INSTANTIATE(float)
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
#undef LATHE_INSTANTIATE

}  // namespace lathe::cuda
