// The forward kernel of attention with terms.
#include "lathe/core/cuda/attention/terms/terms_tile.h"

namespace lathe::cuda {
namespace {

// A block takes kQ queries of a head, and goes through the tiles of keys that they see. For each of
// its rows, a thread keeps the largest score so far and the sum of exponentials relative to it. It
// also keeps the output before the division. It is one function because its accumulators stay in
// registers, and its tiles in shared memory, through all steps.
template <typename T, int kD, int kQ>
__global__ void __launch_bounds__(kSide* kSide)
    TermsForwardKernel(T* out, float* lse, const T* q, const T* k, const T* v, AttentionTerms terms,
                       AttentionParams params) {
  constexpr int kR = kQ / kSide, kParts = kD / kColumns;
  const int head = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int first = blockIdx.x * kQ;
  if (first >= s.queries) return;
  const TermsRoom<kQ> room = RoomOf<kQ>(DynamicShared<float>());
  const HeadRows<T> q_rows = HeadRowsOf(q, s.query_row, head, params),
                    k_rows = HeadRowsOf(k, s.key_row, head, params),
                    v_rows = HeadRowsOf(v, s.key_row, head, params);
  float top[kR], sum[kR], result[kParts][kR][4] = {};
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    top[i] = kNoScore;
    sum[i] = 0;
  }
  const Span keys = SpanOf(first, min(kQ, s.queries - first), terms.window, s.keys, kKeys);
  for (int key = keys.begin; key < keys.end; key += kKeys) {
    const TilePlace place = {head, first, key};
    float p[kR][4];
    Scores<T, kQ>(p, room, q_rows, k_rows, kParts > 1 || key == keys.begin, s, place, terms,
                  params);
    LATHE_UNROLL
    for (int i = 0; i < kR; ++i) {
      const int query = first + y + kSide * i;
      bool sees[4];
      float largest = top[i];
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) {
        sees[w] = Sees(s, terms.window, query, key + x + kSide * w);
        if (sees[w]) largest = fmaxf(largest, p[i][w]);
      }
      largest = MaxOverX(largest);
      float part = 0;
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) {
        p[i][w] = sees[w] ? expf(p[i][w] - largest) : 0;
        part += p[i][w];
      }
      const float shrink = expf(top[i] - largest);
      sum[i] = sum[i] * shrink + SumOverX(part);
      top[i] = largest;
      LATHE_UNROLL
      for (int n = 0; n < kParts; ++n) {
        LATHE_UNROLL
        for (int c = 0; c < 4; ++c) result[n][i][c] *= shrink;
      }
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) {
        const int column = x + kSide * w;
        if (params.threshold > 0) p[i][w] *= MaskAt(params, s, head, query, key + column);
        room.scores[(y + kSide * i) * kKeysLd + column] = p[i][w];
      }
    }
    LATHE_UNROLL
    for (int n = 0; n < kParts; ++n) {
      if (n * kColumns >= params.head_dim) break;
      __syncthreads();
      v_rows.Load(room.b, kKeys, n * kColumns,
                  [&](int r) { return key + r < s.keys ? key + r : -1; });
      __syncthreads();
      RowsTimesColumns(result[n], room.scores, room.b, kColumnsLd);
    }
  }
  LATHE_UNROLL
  for (int i = 0; i < kR; ++i) {
    const int query = first + y + kSide * i;
    if (query >= s.queries) continue;
    const int64_t row = s.query_row + query;
    T* const to = out + row * params.width + static_cast<int64_t>(head) * params.head_dim;
    LATHE_UNROLL
    for (int n = 0; n < kParts; ++n) {
      LATHE_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int column = n * kColumns + x + kSide * c;
        if (column < params.head_dim) Store(to[column], result[n][i][c] / sum[i]);
      }
    }
    if (x == 0) lse[row * params.heads + head] = top[i] + logf(sum[i]);
  }
}

}  // namespace

template <typename T>
void TermsAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                           const AttentionTerms& terms, const AttentionParams& params) {
  WithTermsTile(params, [&](auto kd, auto kq) {
    constexpr int kD = kd, kQ = kq;
    const int longest = params.first_query_only ? 1 : params.max_seqlen;
    LATHE_LAUNCH((TermsForwardKernel<T, kD, kQ>), AttentionGrid(params, longest, kQ),
                 dim3(kSide, kSide), TermsBytesOf(terms, kQ), out, lse, q, k, v, terms, params);
  });
}

#define LATHE_INSTANTIATE(T)                                                       \
  template void TermsAttentionForward<T>(T*, float*, const T*, const T*, const T*, \
                                         const AttentionTerms&, const AttentionParams&);
LATHE_INSTANTIATE(float)
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
#undef LATHE_INSTANTIATE

}  // namespace lathe::cuda
