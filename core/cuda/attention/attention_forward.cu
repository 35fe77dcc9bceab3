// The plain forward kernel of attention.
#include "lathe/core/cuda/attention/attention_tile.h"

namespace lathe::cuda {
namespace {

// Turns the scores p of the tile of keys at b0 into exponentials relative to the largest score so
// far. Adds them to `sum`, and rescales `sum` and `result` if `top` rises. Then writes them to
// p_tile, with 0 where an element is dropped. `first` is the block's first query.
template <int kR, int kC>
__device__ void AddToSums(float (&top)[kR], float (&sum)[kR], float (&result)[kR][kC],
                          float (&p)[kR][4], float* p_tile, const AttentionParams& params,
                          const Sequence& s, int first, int b0) {
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    float largest = top[i];
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      if (KeyAt(s, b0, x + kSide * w) >= 0) largest = fmaxf(largest, p[i][w]);
    }
    largest = MaxOverX(largest);
    float part = 0;
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const bool there = KeyAt(s, b0, x + kSide * w) >= 0;
      p[i][w] = there ? expf((p[i][w] - largest) * params.scale) : 0;
      part += p[i][w];
    }
    const float shrink = expf((top[i] - largest) * params.scale);
    sum[i] = sum[i] * shrink + SumOverX(part);
    top[i] = largest;
    LATHE_UNROLL
    for (int c = 0; c < kC; ++c) result[i][c] *= shrink;
    if (params.threshold > 0) {
      const PhiloxBlock bits = AttentionBits(params, s, head, first + y + kSide * i, b0 + x);
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) p[i][w] = bits.v[w] < params.threshold ? 0 : p[i][w];
    }
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) p_tile[(y + kSide * i) * kKeysLd + x + kSide * w] = p[i][w];
  }
}

// A block takes kQ queries of a head and has PlainForwardBytes of shared memory. It goes through
// the tiles of keys. For each of its rows, a thread keeps the largest score so far. It also keeps
// the sum of exponentials relative to that score, and the output before the division.
template <typename T, int kD, int kQ>
__global__ void __launch_bounds__(kSide* kSide)
    ForwardKernel(T* out, float* lse, const T* q, const T* k, const T* v, AttentionParams params) {
  constexpr int kR = kQ / kSide, kC = kD / kSide;
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int first = blockIdx.x * kQ;
  if (first >= s.queries) return;
  float* q_tile = DynamicShared<float>();
  float* kv_tile = q_tile + kQ * kLd<kD>;
  float* p_tile = kv_tile + kKeys * kLd<kD>;
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  LoadTile<kD>(q_tile, kQ, q + s.query_row * params.width + column, params,
               [&](int r) { return first + r < s.queries ? first + r : -1; });
  float top[kR], sum[kR], result[kR][kC] = {};
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    top[i] = kNoScore;
    sum[i] = 0;
  }
  for (int b0 = 0; b0 < s.quarter; b0 += kSide) {
    const auto key_at = [&](int r) { return KeyAt(s, b0, r); };
    const int64_t from = s.key_row * params.width + column;
    __syncthreads();
    LoadTile<kD>(kv_tile, kKeys, k + from, params, key_at);
    __syncthreads();
    float p[kR][4] = {};
    RowsTimesRows(p, q_tile, kv_tile, kLd<kD>, params.head_dim);
    AddToSums(top, sum, result, p, p_tile, params, s, first, b0);
    __syncthreads();
    LoadTile<kD>(kv_tile, kKeys, v + from, params, key_at);
    __syncthreads();
    RowsTimesColumns(result, p_tile, kv_tile, kLd<kD>);
  }
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int query = first + y + kSide * i;
    if (query >= s.queries) continue;
    const int64_t row = s.query_row + query;
    const float factor = params.keep_scale / sum[i];
    LATHE_UNROLL
    for (int c = 0; c < kC; ++c) {
      const int at = x + kSide * c;
      if (at < params.head_dim) {
        Store(out[row * params.width + column + at], result[i][c] * factor);
      }
    }
    if (x == 0) lse[row * params.heads + head] = top[i] * params.scale + logf(sum[i]);
  }
}

}  // namespace

template <typename T>
void PlainAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                           const AttentionParams& params) {
  const PlainTile tile = PlainTileOf(params, false);
  WithPlainTile(tile, [&](auto kd, auto kq, auto) {
    constexpr int kD = kd, kQ = kq;
    const int longest = params.first_query_only ? 1 : params.max_seqlen;
    LATHE_LAUNCH((ForwardKernel<T, kD, kQ>), AttentionGrid(params, longest, kQ), dim3(kSide, kSide),
                 PlainForwardBytes(tile), out, lse, q, k, v, params);
  });
}

#define LATHE_INSTANTIATE(T)                                                       \
  template void PlainAttentionForward<T>(T*, float*, const T*, const T*, const T*, \
                                         const AttentionParams&);
LATHE_INSTANTIATE(float)
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
#undef LATHE_INSTANTIATE

}  // namespace lathe::cuda
