// The forward kernel of attention on tensor cores.
#include "lathe/core/cuda/attention/attention_mma.h"

namespace lathe::cuda {
namespace {

// Shared memory holds q, then k and v for each stage, [64, kD] each. While a tile of keys is worked
// on, the next one arrives in the other stage.
template <int kD>
size_t ForwardBytes(int stages) {
  return sizeof(uint16_t) * (1 + 2 * stages) * kTileRows * kNarrowLd<kD>;
}

// Returns a mask whose bit 2 n + e tells whether scores [n][e] and [n][2 + e] of the tile at b0
// have a key.
template <int kN>
__device__ uint32_t KeysInTile(const Sequence& s, int b0) {
  uint32_t there = 0;
  LATHE_UNROLL
  for (int n = 0; n < kN; ++n) {
    LATHE_UNROLL
    for (int e = 0; e < 2; ++e) there |= uint32_t{IsKey(s, b0, n, e)} << (2 * n + e);
  }
  return there;
}

// Turns the scores p of a tile of keys into exponentials relative to the largest score so far, with
// 0 where an element is dropped. Adds them to `sum`, which covers this thread's columns only, and
// rescales `sum` and `result` if `top` rises. `there` is what KeysInTile returns, and bit 4 n + i
// of `dropped` is for score [n][i].
template <int kN, int kC>
__device__ void AddToSums(float (&top)[2], float (&sum)[2], float (&result)[kC][4],
                          float (&p)[kN][4], uint32_t there, uint32_t dropped, float scale2) {
  LATHE_UNROLL
  for (int r = 0; r < 2; ++r) {
    float largest = top[r];
    LATHE_UNROLL
    for (int n = 0; n < kN; ++n) {
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (there >> (2 * n + e) & 1) largest = fmaxf(largest, p[n][2 * r + e]);
      }
    }
    for (int by = 1; by <= 2; by *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, by));
    }
    const float shrink = exp2f((top[r] - largest) * scale2);
    top[r] = largest;
    sum[r] *= shrink;
    LATHE_UNROLL
    for (int n = 0; n < kC; ++n) {
      result[n][2 * r] *= shrink;
      result[n][2 * r + 1] *= shrink;
    }
    LATHE_UNROLL
    for (int n = 0; n < kN; ++n) {
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& x = p[n][2 * r + e];
        x = there >> (2 * n + e) & 1 ? exp2f((x - largest) * scale2) : 0;
        sum[r] += x;
        if (dropped >> (4 * n + 2 * r + e) & 1) x = 0;
      }
    }
  }
}

// A block takes 64 queries of a head, 16 a warp. The running sums are those of
// attention_forward.cu.
template <typename T, int kD>
__global__ void __launch_bounds__(kWarps * 32)
    ForwardKernel(T* out, float* lse, const T* q, const T* k, const T* v, AttentionParams params) {
  constexpr int kN = kKeys / 8;
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int first = blockIdx.x * kTileRows;
  if (first >= s.queries) return;
  T* q_tile = DynamicShared<T>();
  T* stages = q_tile + kTileRows * kNarrowLd<kD>;
  T* q_rows = q_tile + warp * kWarpRows * kNarrowLd<kD>;
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  const int64_t kv_from = s.key_row * params.width + column;
  LoadNarrowTile<kD>(q_tile, kTileRows, q + s.query_row * params.width + column, params,
                     [&](int r) { return first + r < s.queries ? first + r : -1; });
  const auto load_keys = [&](int b0, T* stage) {
    const auto key_at = [&](int r) { return KeyAt(s, b0, r); };
    LoadNarrowTile<kD>(stage, kKeys, k + kv_from, params, key_at);
    LoadNarrowTile<kD>(stage + kKeys * kNarrowLd<kD>, kKeys, v + kv_from, params, key_at);
  };
  load_keys(0, stages);
  CommitCopies();
  const int warp_first = first + warp * kWarpRows, query = warp_first + g;
  const float scale2 = params.scale * kLog2E;
  float top[2] = {kNoScore, kNoScore}, sum[2] = {}, result[kD / 8][4] = {};
  for (int b0 = 0; b0 < s.quarter; b0 += kSide) {
    constexpr int kStage = 2 * kKeys * kNarrowLd<kD>;
    const T* k_tile = stages + b0 / kSide % 2 * kStage;
    const T* v_tile = k_tile + kKeys * kNarrowLd<kD>;
    __syncthreads();
    if (b0 + kSide < s.quarter) load_keys(b0 + kSide, stages + (b0 / kSide + 1) % 2 * kStage);
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
    if (warp_first >= s.queries) continue;
    float p[kN][4];
    Scores<kKeys, kD>(p, q_rows, k_tile);
    const uint32_t dropped = DroppedOfQueries(params, s, head, query, b0);
    AddToSums(top, sum, result, p, KeysInTile<kN>(s, b0), dropped, scale2);
    AddProduct<kKeys, kD>(result, p, v_tile);
  }
  if (warp_first >= s.queries) return;
  float factors[2];
  LATHE_UNROLL
  for (int r = 0; r < 2; ++r) {
    for (int by = 1; by <= 2; by *= 2) sum[r] += __shfl_xor_sync(kFullWarp, sum[r], by);
    factors[r] = params.keep_scale / sum[r];
    if (t == 0 && query + 8 * r < s.queries) {
      lse[(s.query_row + query + 8 * r) * params.heads + head] =
          top[r] * params.scale + logf(sum[r]);
    }
  }
  StoreWarpRows<kD>(out + column, result, factors, q_rows, params, [&](int r) {
    return warp_first + r < s.queries ? s.query_row + warp_first + r : int64_t{-1};
  });
}

}  // namespace

template <typename T>
void TensorCoreAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                                const AttentionParams& params) {
  WithNarrowTile(params, [&](auto kd) {
    constexpr int kD = kd;
    const int longest = params.first_query_only ? 1 : params.max_seqlen;
    LATHE_LAUNCH((ForwardKernel<T, kD>), AttentionGrid(params, longest, kTileRows), kWarps * 32,
                 ForwardBytes<kD>(params.max_seqlen > kKeys ? 2 : 1), out, lse, q, k, v, params);
  });
}

template void TensorCoreAttentionForward<BFloat16>(BFloat16*, float*, const BFloat16*,
                                                   const BFloat16*, const BFloat16*,
                                                   const AttentionParams&);
template void TensorCoreAttentionForward<Float16>(Float16*, float*, const Float16*, const Float16*,
                                                  const Float16*, const AttentionParams&);

}  // namespace lathe::cuda
