// Attention of bfloat16 activations by the instruction that multiplies pairs. It computes what
// attention.cc does, but multiplies queries, keys, values and gradients without converting them.
// Probabilities and the scores' gradients are rounded to bfloat16 before they are multiplied. Sums
// are float32.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include "lathe/core/cpu/attention/tiles.h"
#include "lathe/core/cpu/bfloat16_pairs.h"

namespace lathe::cpu {
namespace {

#if LATHE_HAS_BFLOAT16_PRODUCTS
// True if the kernels below, and those of variant_pairs.h, support heads of this size.
bool SupportsPairs(const AttentionArgs& args) { return args.head_dim % 32 == 0; }

void ForwardOfPairs(BFloat16* out, float* lse, const BFloat16* q, const BFloat16* k,
                    const BFloat16* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d,
                most_keys = RowStride<float>(args.max_seqlen);
  const int64_t chunk = Chunk(args);
  const int64_t working = (d + 2 * kTile) * most_keys + kTile * most_keys / 2 + kTile * d + d + 128;
  Scratch<float>::Reserve(working);
#pragma omp parallel
  {
    Scratch<float> scratch(working);
    uint32_t* kt = reinterpret_cast<uint32_t*>(scratch.Take(d / 2 * most_keys));
    uint32_t* values = reinterpret_cast<uint32_t*>(scratch.Take(d * (most_keys + 1) / 2));
    float* scores = scratch.Take(kTile * most_keys);
    BFloat16* p = reinterpret_cast<BFloat16*>(scratch.Take(kTile * most_keys / 2));
    float* out_tile = scratch.Take(kTile * d);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys + kLanes));
#pragma omp for collapse(2) schedule(dynamic, chunk)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const auto [S, keys, ld, q_begin, queries, kv, next, q_next] = StripsOf<float>(args, s, h);
        TransposePairs(kt, ld, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        PairRows(values, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          Product(rows, keys, d / 2, PairsOf(q + at, H), kt, ld, scores, ld, Result::kOverwrite);
          Fetch<false>(q + at + q_next, H, rows, d);
          Softmax(args, {s, h, tile, rows, S}, scores, ld, p, keys, lse,
                  (q_begin + tile) * args.heads + h, bits);
          Fetch<true>(out + at + q_next, H, rows, d);
          Product(rows, d, (S + 1) / 2, PairsOf(p, keys), values, d, out_tile, d,
                  Result::kOverwrite);
          Write(out + at, H, out_tile, rows, d);
        }
      }
    }
  }
}

float DotOf(const BFloat16* a, const BFloat16* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Load(a[i]) * Load(b[i]);
  return sum;
}

// Computes Backward (attention.cc) with products of pairs of bfloat16. It is long because all its
// steps share the working memory of a thread.
void BackwardOfPairs(BFloat16* dq, BFloat16* dk, BFloat16* dv, const BFloat16* dout,
                     const BFloat16* out, const float* lse, const BFloat16* q, const BFloat16* k,
                     const BFloat16* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d,
                most_keys = RowStride<float>(args.max_seqlen);
  const int64_t chunk = Chunk(args);
  const int64_t working = (4 * d + 5 * kTile) * most_keys + (2 * kTile + 1) * d + 512;
  Scratch<float>::Reserve(working);
#pragma omp parallel
  {
    Scratch<float> scratch(working);
    const auto words = [&](int64_t n) { return reinterpret_cast<uint32_t*>(scratch.Take(n)); };
    uint32_t* kt = words(d / 2 * most_keys);
    uint32_t* vt = words(d / 2 * most_keys);
    uint32_t* key_pairs = words(d * (most_keys + 1) / 2);
    float* p = scratch.Take(kTile * most_keys);
    float* ds = scratch.Take(kTile * most_keys);
    uint32_t* p_pairs = words(kTile / 2 * most_keys);   // pairs of neighbouring queries
    uint32_t* ds_pairs = words(kTile / 2 * most_keys);  // pairs of neighbouring queries
    BFloat16* ds_rows = reinterpret_cast<BFloat16*>(scratch.Take(kTile * most_keys / 2));
    float* dkeys = scratch.Take(d * most_keys);
    float* dvalues = scratch.Take(d * most_keys);
    uint32_t* q_pairs = words(kTile / 2 * d);
    uint32_t* dout_pairs = words(kTile / 2 * d);
    float* dq_tile = scratch.Take(kTile * d);
    uint32_t* bits = words(kTile * most_keys + kLanes);
#pragma omp for collapse(2) schedule(dynamic, chunk)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const auto [S, keys, ld, q_begin, queries, kv, next, q_next] = StripsOf<float>(args, s, h);
        TransposePairs(kt, ld, k + kv, H, S, d);
        PairRows(key_pairs, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        TransposePairs(vt, ld, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Result result = tile > 0 ? Result::kAddTo : Result::kOverwrite;  // dK and dV
          Product(rows, keys, d / 2, PairsOf(q + at, H), kt, ld, p, ld, Result::kOverwrite);
          PairRows(q_pairs, q + at, H, rows, d);
          Fetch<false>(q + at + q_next, H, rows, d);
          Product(rows, keys, d / 2, PairsOf(dout + at, H), vt, ld, ds, ld, Result::kOverwrite);
          PairRows(dout_pairs, dout + at, H, rows, d);
          float dot[kTile];
          for (int64_t i = 0; i < rows; ++i) dot[i] = DotOf(out + at + i * H, dout + at + i * H, d);
          Fetch<false>(dout + at + q_next, H, rows, d);
          Fetch<false>(out + at + q_next, H, rows, d);
          SoftmaxGradients(args, {s, h, tile, rows, S}, p, ds, ld, dot,
                           lse + (q_begin + tile) * args.heads + h, bits);
          PairRows(p_pairs, ld, p, rows, keys);
          Fetch<true>(dv + kv + next, H, tile == 0 ? S : 0, d);
          Product(S, d, (rows + 1) / 2, Elements<uint32_t>{p_pairs, 1, ld}, dout_pairs, d, dvalues,
                  d, result);
          PairRows(ds_pairs, ld, ds, rows, keys);
          Fetch<true>(dk + kv + next, H, tile == 0 ? S : 0, d);
          Product(S, d, (rows + 1) / 2, Elements<uint32_t>{ds_pairs, 1, ld}, q_pairs, d, dkeys, d,
                  result);
          for (int64_t i = 0; i < rows; ++i) {
            const float* row = ds + i * ld;
            BFloat16* to = ds_rows + i * keys;
#pragma omp simd
            for (int64_t j = 0; j < keys; ++j) Store(to[j], row[j]);
            if (S < keys) to[S] = BFloat16(0.0f);  // the last pair's second element, if S is odd
          }
          Fetch<true>(dq + at + q_next, H, rows, d);
          Product(rows, d, (S + 1) / 2, PairsOf(ds_rows, keys), key_pairs, d, dq_tile, d,
                  Result::kOverwrite);
          Write(dq + at, H, dq_tile, rows, d);
        }
        Write(dk + kv, H, dkeys, S, d);
        Write(dv + kv, H, dvalues, S, d);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace lathe::cpu
