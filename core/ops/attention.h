// Multi-head attention over packed sequences.
#pragma once

#include "lathe/core/ops/dropout.h"

namespace lathe {

// The sequences of a packed batch. Each has 1 to max_seqlen tokens. Ops check that if cu_seqlens
// lies on the host; on a device they trust it.
struct PackedSequences {
  Tensor cu_seqlens = {};  // [B+1] i32: 0, then the end of each sequence
  Tensor sample_ids = {};  // [B] i32: keys of the dropout masks
  int64_t max_seqlen = 0;
  int64_t num_tokens = -1;  // the last number in cu_seqlens; -1: not given
  int64_t size() const { return cu_seqlens.dim(0) - 1; }
};

// Tables for scores that depend on how far a query is from a key. A row of the tables belongs to
// each offset i - j of a query i and a key j in one sequence. The score of the two is
//   scale * (q_i . k_j + q_i . keys[row] + k_j . queries[row]) + bias[row]
// Undefined tables add nothing. All tables have R rows. `keys` and `queries` take part in autograd
// and have the same width: H, or d = H / num_heads if all heads share them. With d = H both mean
// the same.
//
//   RelativePositions relative;                       // of T5's kind: a bias for each offset
//   relative.rows = Tensor::FromVector(buckets);      // 2 L - 1 numbers below R
//   relative.bias = table;                            // [R, heads]
struct RelativePositions {
  Tensor rows = {};     // [2 L - 1] i32, L >= max_seqlen: (i - j) + L - 1 holds the row of i - j.
                        // With keys or queries no number is smaller than the one before it.
  Tensor bias = {};     // [R, heads], float32 (float64 if q is); takes part in autograd
  Tensor keys = {};     // [R, H] or [R, d], q's dtype
  Tensor queries = {};  // [R, H] or [R, d], q's dtype

  bool defined() const { return bias.defined() || keys.defined() || queries.defined(); }
};

struct AttentionOptions {
  int64_t num_heads = 1;
  bool first_query_only = false;  // q has one row per sequence: its first token
  bool values_first = false;      // kv has the values above the keys
  DropoutSpec dropout = {};       // of the probabilities; its row arrays are not used
  double scale = 0;               // of the scores; 0: 1 / sqrt(H / num_heads)
  int64_t window = -1;            // query i sees only keys j with |i - j| <= window; -1: all keys
  RelativePositions relative = {};
};

// Computes softmax(scale * q k^T) v for each sequence and head, with the window and the relative
// terms that `options` adds to the scores. Returns q's shape. q: [T, H], or [B, H] with
// first_query_only. kv: [2 T, H], the keys above the values unless values_first is set. Rows beyond
// the last sequence give 0. There may be no sequence at all. A NaN in a key or a value may reach
// queries whose window leaves it out. The backward pass computes the probabilities again from a
// log-sum-exp that is saved for each row and head. It assigns all gradients. Throws InvalidArgument
// for shapes, dtypes and devices that do not fit.
Tensor PackedAttention(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                       const AttentionOptions& options);

// Does the same for queries that lie above the keys and values: qkv is [3 T, H]. The gradient is
// one tensor, too. There is no first_query_only.
Tensor PackedSelfAttention(const Tensor& qkv, const PackedSequences& sequences,
                           const AttentionOptions& options);

// Composes the first of the two of single ops, without dropout: documentation and test oracle.
Tensor PackedAttentionComposed(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                               const AttentionOptions& options);

}  // namespace lathe
