// Attention with a window or with relative terms. It computes what attention.cc does, in the same
// tiles. A tile has only the keys that its window reaches, so time grows with the window. Working
// memory grows with the longest sequence.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lathe/core/cpu/attention/relative.h"
#include "lathe/core/cpu/attention/tiles.h"

namespace lathe::cpu {
namespace {

bool IsVariant(const AttentionArgs& args) {
  return args.window >= 0 || args.relative.rows != nullptr;
}

// The relative terms of a call. `groups` is the number of groups of sequences. Each group sums its
// gradients of the tables into a buffer of its own.
template <typename T, typename M>
struct Terms {
  Terms(const AttentionArgs& args, bool backward)
      : groups(backward && WantsGradients(args) ? Min(args.batch, kMostGroups) : args.batch),
        keys(args, args.relative.keys, false,
             backward ? static_cast<T*>(args.relative.dkeys) : nullptr, groups),
        queries(args, args.relative.queries, true,
                backward ? static_cast<T*>(args.relative.dqueries) : nullptr, groups),
        bias(args, groups) {}
  static bool WantsGradients(const AttentionArgs& args) {
    const RelativeTerms& terms = args.relative;
    return terms.dbias != nullptr || terms.dkeys != nullptr || terms.dqueries != nullptr;
  }
  void StoreGradients() const {
    keys.StoreGradient();
    queries.StoreGradient();
    bias.StoreGradient();
  }

  static constexpr int64_t kMostGroups = 8;  // independent of the number of threads
  const int64_t groups;
  const SpreadTable<T, M> keys, queries;
  const SpreadBias<M> bias;
};

// A tile of queries [first, first + rows) with the keys [begin, begin + n) that they may see.
struct VariantTile {
  int64_t first, rows, begin, n, window;
};
template <typename M>
VariantTile TileOf(const AttentionArgs& args, int64_t first, int64_t rows, int64_t S) {
  const int64_t window = args.window < 0 ? S : Min(args.window, S);
  const int64_t begin = std::max<int64_t>(0, first - window) / Line<M>::kSize * Line<M>::kSize;
  return {first, rows, begin, Min(S, first + rows + window) - begin, window};
}

// Sets the columns that query r's window leaves out to `value`.
template <typename To>
void MaskWindow(const VariantTile& tile, To* x, int64_t ld, To value) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t center = tile.first + r - tile.begin;
    const int64_t left = std::max<int64_t>(0, center - tile.window);
    const int64_t right = Min(tile.n, center + tile.window + 1);
    std::fill(x + r * ld, x + r * ld + left, value);
    std::fill(x + r * ld + right, x + r * ld + tile.n, value);
  }
}

// Computes a tile's scores before they are scaled. `product`, a function of a Result, assigns or
// adds the products of queries and keys. q: the tile's queries, read if there is a term of keys.
// keys: (S, width), read if there is a term of queries. p: (kTile, p_row). turned: working memory,
// (S, SkewedStride(kTile)).
template <typename T, typename M, typename F>
void VariantScores(const Terms<T, M>& terms, const AttentionArgs& args, const VariantTile& tile,
                   int64_t h, const Elements<M>& q, const M* keys, M* p, int64_t p_row, M* turned,
                   F product) {
  const int64_t d = args.head_dim, width = WholeLines<M>(d), last = args.max_seqlen - 1;
  Result result = Result::kOverwrite;
  if (terms.queries.there()) {
    const int64_t row = SkewedStride<M>(kTile);
    AddSkewed<M>(tile.n, tile.rows, d, {keys + tile.begin * width, width, 1},
                 terms.queries.transposed(h), terms.queries.ld(), tile.first - tile.begin + last,
                 turned, row, Result::kOverwrite);
    TransposeTo(p, p_row, turned, row, tile.n, RoundUp(tile.rows, kSide));
    result = Result::kAddTo;
  }
  product(result);
  const int64_t shift = tile.begin - tile.first + last;
  if (terms.keys.there()) {
    AddSkewed<M>(tile.rows, tile.n, d, q, terms.keys.transposed(h), terms.keys.ld(), shift, p,
                 p_row, Result::kAddTo);
  }
  if (terms.bias.there()) terms.bias.AddTo(p, p_row, h, tile.rows, tile.n, shift);
  if (args.window >= 0) MaskWindow(tile, p, p_row, kNoScore<M>);
}

template <typename T, typename M>
void ForwardOfVariant(T* out, M* lse, const T* q, const T* k, const T* v,
                      const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d, width = WholeLines<M>(d);
  const int64_t most_keys = RowStride<M>(args.max_seqlen);
  const int64_t most_row = SkewedStride<M>(args.max_seqlen);
  const int64_t turned_row = SkewedStride<M>(kTile);
  const Terms<T, M> terms(args, false);
  const int64_t working =
      (d + 2 * width + turned_row) * most_keys + 2 * kTile * most_row + 2 * kTile * width + 256;
  Scratch<M>::Reserve(working);
#pragma omp parallel
  {
    Scratch<M> scratch(working);
    M* kt = scratch.Take(d * most_keys);
    M* keys = scratch.Take(width * most_keys);
    M* values = scratch.Take(width * most_keys);
    M* p = scratch.Take(kTile * most_row + kFront) + kFront;
    M* turned = scratch.Take(turned_row * most_keys + kFront) + kFront;
    M* q_tile = scratch.Take(kTile * width);
    M* out_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_row + kLanes));
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const Strips strips = StripsOf<M>(args, s, h);
        const int64_t S = strips.S, kv = strips.kv;
        TransposeTo(kt, strips.ld, k + kv, H, S, d);
        if (terms.queries.there()) Read(keys, k + kv, H, S, d);
        Read(values, v + kv, H, S, d);
        for (int64_t first = 0; first < strips.queries; first += kTile) {
          const VariantTile tile = TileOf<M>(args, first, Min(kTile, strips.queries - first), S);
          const int64_t rows = tile.rows, row = SkewedStride<M>(tile.n);
          const int64_t q_row = strips.q_begin + first, at = q_row * H + h * d;
          const Elements<M> q_rows = ReadElements(q_tile, q + at, H, rows, d);
          VariantScores(terms, args, tile, h, q_rows, keys, p, row, turned, [&](Result result) {
            Product<M>(rows, WholeLines<M>(tile.n), d, q_rows, kt + tile.begin, strips.ld, p, row,
                       result);
          });
          const TilePlace place = {s, h, first, rows, tile.n, tile.begin, S};
          Softmax(args, place, p, row, p, row, lse, q_row * args.heads + h, bits);
          if (args.window >= 0) MaskWindow(tile, p, row, M(0));
          Product<M>(rows, width, tile.n, {p, row, 1}, values + tile.begin * width, width, out_tile,
                     width, Result::kOverwrite);
          Write(out + at, H, out_tile, rows, d);
        }
      }
    }
  }
}

// Adds what a tile's scores' gradients `ds` give to the terms' tables, to dq and to dkeys. ds has
// zeros in front of its rows and behind them. q: (rows, width), read if there is a term of keys.
// keys and dkeys: (S, width), used if there is a term of queries.
template <typename T, typename M>
void AddVariantGradients(const Terms<T, M>& terms, const AttentionArgs& args,
                         const VariantTile& tile, int64_t group, int64_t h, const M* ds,
                         int64_t row, const M* q, const M* keys, M* dq, M* dkeys, M* turned) {
  const int64_t width = WholeLines<M>(args.head_dim), last = args.max_seqlen - 1;
  const int64_t shift = tile.begin - tile.first + last;
  if (terms.bias.wants_gradient())
    terms.bias.AddGradients(ds, row, group, h, tile.rows, tile.n, shift);
  if (terms.keys.there()) {
    AddRowGradients<M>(tile.rows, tile.n, width, ds, row, terms.keys.rows(h), shift, dq, width);
    if (terms.keys.wants_gradient()) {
      AddTableGradients<M>(tile.rows, tile.n, width, ds, row, q, shift,
                           terms.keys.partial(group, h));
    }
  }
  if (!terms.queries.there()) return;
  const int64_t turned_row = SkewedStride<M>(kTile), from_query = tile.first - tile.begin + last;
  TransposeTo(turned, turned_row, ds, row, tile.rows, WholeLines<M>(tile.n));
  std::fill_n(turned - kFront, kFront, M(0));
  for (int64_t j = 0; j < tile.n; ++j)
    std::fill(turned + j * turned_row + tile.rows, turned + (j + 1) * turned_row, M(0));
  AddRowGradients<M>(tile.n, tile.rows, width, turned, turned_row, terms.queries.rows(h),
                     from_query, dkeys + tile.begin * width, width);
  if (terms.queries.wants_gradient()) {
    AddTableGradients<M>(tile.n, tile.rows, width, turned, turned_row, keys + tile.begin * width,
                         from_query, terms.queries.partial(group, h));
  }
}

// One thread computes a head of all sequences of a group, so that it alone adds to the group's
// partial sums, in a fixed order. It is long because all its steps share the working memory of a
// thread.
template <typename T, typename M>
void BackwardOfVariant(T* dq, T* dk, T* dv, const T* dout, const T* out, const M* lse, const T* q,
                       const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d, width = WholeLines<M>(d);
  const int64_t most_keys = RowStride<M>(args.max_seqlen);
  const int64_t most_row = SkewedStride<M>(args.max_seqlen);
  const int64_t turned_row = SkewedStride<M>(kTile);
  const Terms<T, M> terms(args, true);
  const int64_t working =
      (2 * d + 3 * width + turned_row) * most_keys + 3 * kTile * most_row + 4 * kTile * width + 512;
  Scratch<M>::Reserve(working);
#pragma omp parallel
  {
    Scratch<M> scratch(working);
    M* kt = scratch.Take(d * most_keys);
    M* vt = scratch.Take(d * most_keys);
    M* keys = scratch.Take(width * most_keys);
    M* dkeys = scratch.Take(width * most_keys);
    M* dvalues = scratch.Take(width * most_keys);
    M* p = scratch.Take(kTile * most_row + kFront) + kFront;
    M* ds = scratch.Take(kTile * most_row + kFront) + kFront;
    M* turned = scratch.Take(turned_row * most_keys + kFront) + kFront;
    M* q_tile = scratch.Take(kTile * width);
    M* dout_tile = scratch.Take(kTile * width);
    M* out_tile = scratch.Take(kTile * width);
    M* dq_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_row + kLanes));
    const auto sequence = [&](int64_t group, int64_t s, int64_t h) {
      const Strips strips = StripsOf<M>(args, s, h);
      const int64_t S = strips.S, kv = strips.kv, ld = strips.ld;
      TransposeTo(kt, ld, k + kv, H, S, d);
      TransposeTo(vt, ld, v + kv, H, S, d);
      Read(keys, k + kv, H, S, d);
      std::fill_n(dkeys, S * width, M(0));
      std::fill_n(dvalues, S * width, M(0));
      for (int64_t first = 0; first < strips.queries; first += kTile) {
        const VariantTile tile = TileOf<M>(args, first, Min(kTile, strips.queries - first), S);
        const int64_t rows = tile.rows, n = tile.n, row = SkewedStride<M>(n);
        const int64_t q_row = strips.q_begin + first, at = q_row * H + h * d;
        const int64_t key_row = tile.begin * width;
        Read(q_tile, q + at, H, rows, d);
        const Elements<M> q_rows = {q_tile, width, 1};
        VariantScores(terms, args, tile, h, q_rows, keys, p, row, turned, [&](Result result) {
          Product<M>(rows, WholeLines<M>(n), d, q_rows, kt + tile.begin, ld, p, row, result);
        });
        Read(dout_tile, dout + at, H, rows, d);
        Product<M>(rows, WholeLines<M>(n), d, {dout_tile, width, 1}, vt + tile.begin, ld, ds, row,
                   Result::kOverwrite);
        Read(out_tile, out + at, H, rows, d);
        M dot[kTile];
        for (int64_t i = 0; i < rows; ++i) {
          M sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t c = 0; c < width; ++c)
            sum += out_tile[i * width + c] * dout_tile[i * width + c];
          dot[i] = sum;
        }
        const TilePlace place = {s, h, first, rows, n, tile.begin, S};
        SoftmaxGradients(args, place, p, ds, row, dot, lse + q_row * args.heads + h, bits);
        if (args.window >= 0) {
          MaskWindow(tile, p, row, M(0));
          MaskWindow(tile, ds, row, M(0));
        }
        std::fill_n(ds - kFront, kFront, M(0));
        for (int64_t i = 0; i < rows; ++i) std::fill(ds + i * row + n, ds + (i + 1) * row, M(0));
        Product<M>(n, width, rows, {p, 1, row}, dout_tile, width, dvalues + key_row, width,
                   Result::kAddTo);
        Product<M>(n, width, rows, {ds, 1, row}, q_tile, width, dkeys + key_row, width,
                   Result::kAddTo);
        Product<M>(rows, width, n, {ds, row, 1}, keys + key_row, width, dq_tile, width,
                   Result::kOverwrite);
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

}  // namespace
}  // namespace lathe::cpu
