// These kernels compute what variants.h does, for bfloat16 activations, by the instruction that
// multiplies pairs. A product sums over the elements of a head, over keys or over queries. A row's
// elements lie in memory as pairs. For sums over keys or queries, PairRows makes pairs of
// neighbouring rows. Probabilities and the scores' gradients are rounded to bfloat16 before they
// are multiplied, as in pairs.h.
//
// Products with the tables of relative terms stay float32. Those for gradients sum over offsets or
// over rows, and the sum may begin at any of these, so no pairs can be made beforehand. Those for
// scores sum over the elements of a head. They could multiply pairs, but don't.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lathe/core/cpu/attention/pairs.h"
#include "lathe/core/cpu/attention/variants.h"
#include "lathe/core/cpu/bfloat16_pairs.h"

namespace lathe::cpu {
namespace {

#if LATHE_HAS_BFLOAT16_PRODUCTS
void ForwardOfVariantPairs(BFloat16* out, float* lse, const BFloat16* q, const BFloat16* k,
                           const BFloat16* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t most_keys = RowStride<float>(args.max_seqlen);
  const int64_t most_row = SkewedStride<float>(args.max_seqlen);
  const int64_t turned_row = SkewedStride<float>(kTile);
  const Terms<BFloat16, float> terms(args, false);
  const int64_t working = (2 * d + turned_row + kTile / 2) * most_keys + 2 * kTile * most_row +
                          (2 * kTile + 1) * d + 256;
  Scratch<float>::Reserve(working);
#pragma omp parallel
  {
    Scratch<float> scratch(working);
    uint32_t* kt = reinterpret_cast<uint32_t*>(scratch.Take(d / 2 * most_keys));
    uint32_t* values = reinterpret_cast<uint32_t*>(scratch.Take(d * (most_keys + 1) / 2));
    float* keys = scratch.Take(d * most_keys);
    float* scores = scratch.Take(kTile * most_row + kFront) + kFront;
    BFloat16* p = reinterpret_cast<BFloat16*>(scratch.Take(kTile * most_keys / 2));
    float* turned = scratch.Take(turned_row * most_keys + kFront) + kFront;
    float* q_tile = scratch.Take(kTile * d);
    float* out_tile = scratch.Take(kTile * d);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_row + kLanes));
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const Strips strips = StripsOf<float>(args, s, h);
        const int64_t S = strips.S, kv = strips.kv;
        TransposePairs(kt, strips.ld, k + kv, H, S, d);
        if (terms.queries.there()) Read(keys, k + kv, H, S, d);
        PairRows(values, v + kv, H, S, d);
        for (int64_t first = 0; first < strips.queries; first += kTile) {
          const VariantTile tile =
              TileOf<float>(args, first, Min(kTile, strips.queries - first), S);
          const int64_t rows = tile.rows, n = tile.n, row = SkewedStride<float>(n);
          const int64_t p_row = WholeLines<float>(n);
          const int64_t q_row = strips.q_begin + first, at = q_row * H + h * d;
          if (terms.keys.there()) Read(q_tile, q + at, H, rows, d);
          VariantScores(terms, args, tile, h, {q_tile, d, 1}, keys, scores, row, turned,
                        [&](Result result) {
                          Product(rows, p_row, d / 2, PairsOf(q + at, H), kt + tile.begin,
                                  strips.ld, scores, row, result);
                        });
          const TilePlace place = {s, h, first, rows, n, tile.begin, S};
          Softmax(args, place, scores, row, p, p_row, lse, q_row * args.heads + h, bits);
          if (args.window >= 0) MaskWindow(tile, p, p_row, BFloat16(0.0f));
          Product(rows, d, (n + 1) / 2, PairsOf(p, p_row), values + tile.begin / 2 * d, d, out_tile,
                  d, Result::kOverwrite);
          Write(out + at, H, out_tile, rows, d);
        }
      }
    }
  }
}

// One thread computes a head of all sequences of a group, as in BackwardOfVariant. It is long
// because all its steps share the working memory of a thread.
void BackwardOfVariantPairs(BFloat16* dq, BFloat16* dk, BFloat16* dv, const BFloat16* dout,
                            const BFloat16* out, const float* lse, const BFloat16* q,
                            const BFloat16* k, const BFloat16* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t most_keys = RowStride<float>(args.max_seqlen);
  const int64_t most_row = SkewedStride<float>(args.max_seqlen);
  const int64_t turned_row = SkewedStride<float>(kTile);
  const Terms<BFloat16, float> terms(args, true);
  const int64_t working = (4 * d + d / 2 + turned_row + kTile / 2) * most_keys +
                          4 * kTile * most_row + (3 * kTile + 1) * d + 768;
  Scratch<float>::Reserve(working);
#pragma omp parallel
  {
    Scratch<float> scratch(working);
    const auto words = [&](int64_t n) { return reinterpret_cast<uint32_t*>(scratch.Take(n)); };
    uint32_t* kt = words(d / 2 * most_keys);
    uint32_t* vt = words(d / 2 * most_keys);
    uint32_t* key_pairs = words(d * (most_keys + 1) / 2);
    float* keys = scratch.Take(d * most_keys);
    float* dkeys = scratch.Take(d * most_keys);
    float* dvalues = scratch.Take(d * most_keys);
    float* p = scratch.Take(kTile * most_row + kFront) + kFront;
    float* ds = scratch.Take(kTile * most_row + kFront) + kFront;
    uint32_t* p_pairs = words(kTile / 2 * most_row);   // pairs of neighbouring queries
    uint32_t* ds_pairs = words(kTile / 2 * most_row);  // pairs of neighbouring queries
    BFloat16* ds_rows = reinterpret_cast<BFloat16*>(scratch.Take(kTile * most_keys / 2));
    float* turned = scratch.Take(turned_row * most_keys + kFront) + kFront;
    uint32_t* q_pairs = words(kTile / 2 * d);
    uint32_t* dout_pairs = words(kTile / 2 * d);
    float* q_tile = scratch.Take(kTile * d);
    float* dq_tile = scratch.Take(kTile * d);
    uint32_t* bits = words(kTile * most_row + kLanes);
    const auto sequence = [&](int64_t group, int64_t s, int64_t h) {
      const Strips strips = StripsOf<float>(args, s, h);
      const int64_t S = strips.S, kv = strips.kv, ld = strips.ld;
      TransposePairs(kt, ld, k + kv, H, S, d);
      TransposePairs(vt, ld, v + kv, H, S, d);
      PairRows(key_pairs, k + kv, H, S, d);
      if (terms.queries.there()) Read(keys, k + kv, H, S, d);
      std::fill_n(dkeys, S * d, 0.0f);
      std::fill_n(dvalues, S * d, 0.0f);
      for (int64_t first = 0; first < strips.queries; first += kTile) {
        const VariantTile tile = TileOf<float>(args, first, Min(kTile, strips.queries - first), S);
        const int64_t rows = tile.rows, n = tile.n, row = SkewedStride<float>(n);
        const int64_t whole = WholeLines<float>(n), query_pairs = (rows + 1) / 2;
        const int64_t q_row = strips.q_begin + first, at = q_row * H + h * d;
        const int64_t key_row = tile.begin * d;
        if (terms.keys.there()) Read(q_tile, q + at, H, rows, d);
        VariantScores(
            terms, args, tile, h, {q_tile, d, 1}, keys, p, row, turned, [&](Result result) {
              Product(rows, whole, d / 2, PairsOf(q + at, H), kt + tile.begin, ld, p, row, result);
            });
        PairRows(q_pairs, q + at, H, rows, d);
        Product(rows, whole, d / 2, PairsOf(dout + at, H), vt + tile.begin, ld, ds, row,
                Result::kOverwrite);
        PairRows(dout_pairs, dout + at, H, rows, d);
        float dot[kTile];
        for (int64_t i = 0; i < rows; ++i) dot[i] = DotOf(out + at + i * H, dout + at + i * H, d);
        const TilePlace place = {s, h, first, rows, n, tile.begin, S};
        SoftmaxGradients(args, place, p, ds, row, dot, lse + q_row * args.heads + h, bits);
        if (args.window >= 0) {
          MaskWindow(tile, p, row, 0.0f);
          MaskWindow(tile, ds, row, 0.0f);
        }
        std::fill_n(ds - kFront, kFront, 0.0f);
        for (int64_t i = 0; i < rows; ++i) std::fill(ds + i * row + n, ds + (i + 1) * row, 0.0f);
        PairRows(p_pairs, row, p, rows, whole);
        Product(n, d, query_pairs, Elements<uint32_t>{p_pairs, 1, row}, dout_pairs, d,
                dvalues + key_row, d, Result::kAddTo);
        PairRows(ds_pairs, row, ds, rows, whole);
        Product(n, d, query_pairs, Elements<uint32_t>{ds_pairs, 1, row}, q_pairs, d,
                dkeys + key_row, d, Result::kAddTo);
        for (int64_t i = 0; i < rows; ++i) {
#pragma omp simd
          for (int64_t j = 0; j < whole; ++j) Store(ds_rows[i * whole + j], ds[i * row + j]);
        }
        Product(rows, d, (n + 1) / 2, PairsOf(ds_rows, whole), key_pairs + key_row / 2, d, dq_tile,
                d, Result::kOverwrite);
        AddVariantGradients(terms, args, tile, group, h, ds, row, q_tile, keys, dq_tile, dkeys,
                            turned);
        Write(dq + at, H, dq_tile, rows, d);
      }
      Write(dk + kv, H, dkeys, S, d);
      Write(dv + kv, H, dvalues, S, d);
    };
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t group = 0; group < terms.groups; ++group) {
      for (int64_t h = 0; h < args.heads; ++h) {
        for (int64_t s = group; s < args.batch; s += terms.groups) sequence(group, s, h);
      }
    }
  }
  terms.StoreGradients();
}
#endif

}  // namespace
}  // namespace lathe::cpu
