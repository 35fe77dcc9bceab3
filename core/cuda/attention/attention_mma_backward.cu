// The backward kernels of attention on tensor cores. One kernel computes dQ, another dK and dV, so
// that a single warp adds up each sum in a fixed order. The formulas are those of
// attention_backward.cu.
#include "lathe/core/cuda/attention/attention_mma.h"

namespace lathe::cuda {
namespace {

// The number of queries in a tile of the kernel for dK and dV. It is smaller where the sums take
// many registers.
template <int kD>
constexpr int kQueries = kD <= 32 ? 64 : 32;

// The number of blocks that a multiprocessor should have registers for.
template <int kD>
constexpr int kBlocks = kD <= 64 ? 3 : 2;

// Shared memory. The kernel for dQ takes TensorCoreQueriesBytes. The kernel for dK and dV has k and
// v: [64, kD]. Each of its stages adds q and dout: [kQueries, kD] and lse and dots: [kQueries].
// While a tile is worked on, the next one arrives in the other stage. There are two stages if there
// is more than one tile; every device has room for them.
template <int kD>
constexpr size_t kKeysStage = sizeof(uint16_t) * 2 * kQueries<kD>* kNarrowLd<kD> +
                              sizeof(float) * 2 * kQueries<kD>;
template <int kD>
size_t KeysBytes(int stages) {
  return sizeof(uint16_t) * 2 * kTileRows * kNarrowLd<kD> + stages * kKeysStage<kD>;
}

// Replaces a score p by m P and its gradient dp = dP by dS. Both become 0 if there is no such
// score.
__device__ inline void Gradient(float& p, float& dp, bool there, bool dropped, float lse2,
                                float dot, const AttentionParams& params) {
  const float probability = there ? exp2f(p * (params.scale * kLog2E) - lse2) : 0;
  const float mask = dropped ? 0 : params.keep_scale;
  p = probability * mask;
  dp = there ? probability * (mask * dp - dot) * params.scale : 0;
}

// A block takes 64 queries of a head. It computes dots and dQ = dS K. Without two stages, the next
// tile of keys is loaded only when this one is done. It is one function because its accumulators
// stay in registers, and its tiles in shared memory, through all steps.
template <typename T, int kD>
__global__ void __launch_bounds__(kWarps * 32, kBlocks<kD>)
    QueriesKernel(T* dq, float* dots, const T* dout, const T* out, const float* lse, const T* q,
                  const T* k, const T* v, bool two_stages, AttentionParams params) {
  constexpr int kN = kKeys / 8, kLd16 = kNarrowLd<kD>;
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int first = blockIdx.x * kTileRows;
  if (first >= s.queries) return;
  T* q_tile = DynamicShared<T>();
  T* dout_tile = q_tile + kTileRows * kLd16;
  T* stages = dout_tile + kTileRows * kLd16;
  T* q_rows = q_tile + warp * kWarpRows * kLd16;
  T* dout_rows = dout_tile + warp * kWarpRows * kLd16;
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  const int64_t q_from = s.query_row * params.width + column;
  const int64_t kv_from = s.key_row * params.width + column;
  const auto query_at = [&](int r) { return first + r < s.queries ? first + r : -1; };
  LoadNarrowTile<kD>(q_tile, kTileRows, q + q_from, params, query_at);
  LoadNarrowTile<kD>(dout_tile, kTileRows, dout + q_from, params, query_at);
  LoadNarrowTile<kD>(stages, kTileRows, out + q_from, params, query_at);  // for dots
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  const int warp_first = first + warp * kWarpRows, query = warp_first + g;
  // Lanes r and r + 16 each add up one half of row r.
  float part = 0;
  for (int c = lane / 16 * (kD / 2); c < (lane / 16 + 1) * (kD / 2); ++c) {
    part += Load(stages[(warp * kWarpRows + lane % 16) * kLd16 + c]) *
            Load(dout_rows[lane % 16 * kLd16 + c]);
  }
  part += __shfl_xor_sync(kFullWarp, part, 16);
  if (lane < 16 && warp_first + lane < s.queries) {
    dots[(s.query_row + warp_first + lane) * params.heads + head] = part;
  }
  float dot[2], lse2[2], sums[kD / 8][4] = {};
  LATHE_UNROLL
  for (int r = 0; r < 2; ++r) {
    dot[r] = __shfl_sync(kFullWarp, part, g + 8 * r);
    lse2[r] = query + 8 * r < s.queries
                  ? lse[(s.query_row + query + 8 * r) * params.heads + head] * kLog2E
                  : 0;
  }
  const auto load_keys = [&](int b0, T* stage) {
    const auto key_at = [&](int r) { return KeyAt(s, b0, r); };
    LoadNarrowTile<kD>(stage, kKeys, k + kv_from, params, key_at);
    LoadNarrowTile<kD>(stage + kKeys * kLd16, kKeys, v + kv_from, params, key_at);
  };
  __syncthreads();
  load_keys(0, stages);
  CommitCopies();
  for (int b0 = 0; b0 < s.quarter; b0 += kSide) {
    constexpr int kStage = 2 * kKeys * kLd16;
    const T* k_tile = stages + (two_stages ? b0 / kSide % 2 * kStage : 0);
    const T* v_tile = k_tile + kKeys * kLd16;
    __syncthreads();
    if (two_stages) {
      if (b0 + kSide < s.quarter) load_keys(b0 + kSide, stages + (b0 / kSide + 1) % 2 * kStage);
      CommitCopies();
      WaitForCopies<1>();
    } else {
      if (b0 > 0) load_keys(b0, stages);
      CommitCopies();
      WaitForCopies<0>();
    }
    __syncthreads();
    if (warp_first >= s.queries) continue;
    float p[kN][4], ds[kN][4];
    Scores<kKeys, kD>(p, q_rows, k_tile);
    Scores<kKeys, kD>(ds, dout_rows, v_tile);
    const uint32_t dropped = DroppedOfQueries(params, s, head, query, b0);
    LATHE_UNROLL
    for (int n = 0; n < kN; ++n) {
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const bool there = query + i / 2 * 8 < s.queries && IsKey(s, b0, n, i);
        Gradient(p[n][i], ds[n][i], there, dropped >> (4 * n + i) & 1, lse2[i / 2], dot[i / 2],
                 params);
      }
    }
    AddProduct<kKeys, kD>(sums, ds, k_tile);
  }
  if (warp_first >= s.queries) return;
  const float factors[2] = {1, 1};
  StoreWarpRows<kD>(dq + q_from, sums, factors, q_rows, params, [&](int r) {
    return warp_first + r < s.queries ? int64_t{warp_first + r} : int64_t{-1};
  });
}

// Returns the key in row `r` of the tile at b0, or -1 if there is none. In this order a warp has
// all keys of four blocks of random words. Lane 4 g + t has words 2 (g / 4) and 2 (g / 4) + 1 of
// block g % 4. They are in its rows g and g + 8.
__device__ inline int KeyOfRow(const Sequence& s, int b0, int r) {
  const int b = b0 + r / 16 * 4 + r % 4, w = r % 8 / 4 * 2 + r % 16 / 8;
  const int key = w * s.quarter + b;
  return b < s.quarter && key < s.keys ? key : -1;
}

// Returns a bit for each of this thread's scores that dropout drops. The rows are keys of random
// block b, the columns are the queries from `first` on. Bit 4 n + i belongs to score [n][i]. Lanes
// 4 g + t and 4 (g + 4) + t need the same random words, so each computes one half. All lanes of the
// warp must call this.
template <int kN>
__device__ uint32_t DroppedOfKeys(const AttentionParams& params, const Sequence& s, int head,
                                  int first, int b) {
  if (params.threshold == 0) return 0;
  const int lane = threadIdx.x % 32, half = lane / 16, t = lane % 4;
  uint32_t mine = 0;  // bit 4 n + w: word w of query 8 n + 2 t + half
  LATHE_UNROLL
  for (int n = 0; n < kN; ++n) {
    const PhiloxBlock bits = AttentionBits(params, s, head, first + 8 * n + 2 * t + half, b);
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) mine |= uint32_t{bits.v[w] < params.threshold} << (4 * n + w);
  }
  const uint32_t other = __shfl_xor_sync(kFullWarp, mine, 16);
  const uint32_t even = (half == 0 ? mine : other) >> 2 * half;
  const uint32_t odd = (half == 0 ? other : mine) >> 2 * half;
  // The lower two bits of every four are those of rows g and g + 8.
  constexpr uint32_t kLow = 0x11111111u, kHigh = 0x22222222u;
  return (even & kLow) | (odd & kLow) << 1 | (even & kHigh) << 1 | (odd & kHigh) << 2;
}

// A block takes 64 keys of a head. It computes dV = P'^T dO and dK = dS^T Q, where P' is P after
// dropout. It is one function because its accumulators stay in registers, and its tiles in shared
// memory, through all steps.
template <typename T, int kD>
__global__ void __launch_bounds__(kWarps * 32, kBlocks<kD>)
    KeysKernel(T* dk, T* dv, const float* dots, const T* dout, const float* lse, const T* q,
               const T* k, const T* v, AttentionParams params) {
  constexpr int kQ = kQueries<kD>, kN = kQ / 8, kLd16 = kNarrowLd<kD>;
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const Sequence s = SequenceAt(params, blockIdx.z);
  const int b0 = blockIdx.x * kSide;
  if (b0 >= s.quarter) return;
  T* k_tile = DynamicShared<T>();
  T* v_tile = k_tile + kTileRows * kLd16;
  unsigned char* stages = reinterpret_cast<unsigned char*>(v_tile + kTileRows * kLd16);
  T* k_rows = k_tile + warp * kWarpRows * kLd16;
  T* v_rows = v_tile + warp * kWarpRows * kLd16;
  const int64_t column = static_cast<int64_t>(head) * params.head_dim;
  const int64_t q_from = s.query_row * params.width + column;
  const int64_t kv_from = s.key_row * params.width + column;
  const auto key_at = [&](int r) { return KeyOfRow(s, b0, r); };
  LoadNarrowTile<kD>(k_tile, kTileRows, k + kv_from, params, key_at);
  LoadNarrowTile<kD>(v_tile, kTileRows, v + kv_from, params, key_at);
  const bool warp_has_keys = b0 + 4 * warp < s.quarter;
  const bool has_key[2] = {key_at(warp * kWarpRows + g) >= 0,
                           key_at(warp * kWarpRows + g + 8) >= 0};
  float dkeys[kD / 8][4] = {}, dvalues[kD / 8][4] = {};
  const auto load_queries = [&](int first, unsigned char* stage) {
    const auto query_at = [&](int r) { return first + r < s.queries ? first + r : -1; };
    T* q_tile = reinterpret_cast<T*>(stage);
    LoadNarrowTile<kD>(q_tile, kQ, q + q_from, params, query_at);
    LoadNarrowTile<kD>(q_tile + kQ * kLd16, kQ, dout + q_from, params, query_at);
    float* tile_lse2 = reinterpret_cast<float*>(q_tile + 2 * kQ * kLd16);
    if (const int r = threadIdx.x; r < kQ) {
      const int64_t at = (s.query_row + first + r) * params.heads + head;
      tile_lse2[r] = first + r < s.queries ? lse[at] * kLog2E : 0;
      tile_lse2[kQ + r] = first + r < s.queries ? dots[at] : 0;
    }
  };
  load_queries(0, stages);
  CommitCopies();
  for (int first = 0; first < s.queries; first += kQ) {
    const unsigned char* stage = stages + first / kQ % 2 * kKeysStage<kD>;
    const T* q_tile = reinterpret_cast<const T*>(stage);
    const T* dout_tile = q_tile + kQ * kLd16;
    const float* tile_lse2 = reinterpret_cast<const float*>(dout_tile + kQ * kLd16);
    const float* tile_dots = tile_lse2 + kQ;
    __syncthreads();
    if (first + kQ < s.queries) {
      load_queries(first + kQ, stages + (first / kQ + 1) % 2 * kKeysStage<kD>);
    }
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
    if (!warp_has_keys) continue;
    float p[kN][4], ds[kN][4];
    Scores<kQ, kD>(p, k_rows, q_tile);
    Scores<kQ, kD>(ds, v_rows, dout_tile);
    const uint32_t dropped = DroppedOfKeys<kN>(params, s, head, first, b0 + 4 * warp + g % 4);
    LATHE_UNROLL
    for (int n = 0; n < kN; ++n) {
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * n + 2 * t + i % 2;
        Gradient(p[n][i], ds[n][i], has_key[i / 2] && first + r < s.queries,
                 dropped >> (4 * n + i) & 1, tile_lse2[r], tile_dots[r], params);
      }
    }
    AddProduct<kQ, kD>(dvalues, p, dout_tile);
    AddProduct<kQ, kD>(dkeys, ds, q_tile);
  }
  if (!warp_has_keys) return;
  const float factors[2] = {1, 1};
  const auto row_of = [&](int r) -> int64_t { return KeyOfRow(s, b0, warp * kWarpRows + r); };
  StoreWarpRows<kD>(dk + kv_from, dkeys, factors, k_rows, params, row_of);
  StoreWarpRows<kD>(dv + kv_from, dvalues, factors, v_rows, params, row_of);
}

}  // namespace

template <typename T>
void TensorCoreAttentionBackward(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                                 const float* lse, const T* q, const T* k, const T* v,
                                 const AttentionParams& params) {
  WithNarrowTile(params, [&](auto kd) {
    constexpr int kD = kd;
    const int longest = params.first_query_only ? 1 : params.max_seqlen;
    const int stages = ChooseQueriesStages(kD, params.max_seqlen, SharedMemoryPerBlock());
    LATHE_LAUNCH((QueriesKernel<T, kD>), AttentionGrid(params, longest, kTileRows), kWarps * 32,
                 TensorCoreQueriesBytes(kD, stages), dq, dots, dout, out, lse, q, k, v, stages == 2,
                 params);
    LATHE_LAUNCH((KeysKernel<T, kD>), AttentionGrid(params, params.max_seqlen, kKeys), kWarps * 32,
                 KeysBytes<kD>(longest > kQueries<kD> ? 2 : 1), dk, dv, dots, dout, lse, q, k, v,
                 params);
  });
}

#define LATHE_INSTANTIATE(T)                                                               \
  template void TensorCoreAttentionBackward<T>(T*, T*, T*, float*, const T*, const T*,     \
                                               const float*, const T*, const T*, const T*, \
                                               const AttentionParams&);
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
#undef LATHE_INSTANTIATE

}  // namespace lathe::cuda
