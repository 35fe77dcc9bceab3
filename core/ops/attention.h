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

struct AttentionOptions {
  int64_t num_heads = 1;
  bool first_query_only = false;  // q has one row per sequence: its first token
  bool values_first = false;      // kv has the values above the keys
  DropoutSpec dropout = {};       // of the probabilities; its row arrays are not used
};

// Computes softmax(q k^T / sqrt(H / num_heads)) v for each sequence and head. Returns q's shape.
// q: [T, H], or [B, H] with first_query_only. kv: [2 T, H], the keys above the values unless
// values_first is set. Rows beyond the last sequence give 0. The backward pass computes the
// probabilities again from a log-sum-exp that is saved for each row and head. It assigns all
// gradients.
Tensor PackedAttention(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                       const AttentionOptions& options);

// Composes the same of single ops, without dropout: documentation and test oracle.
Tensor PackedAttentionComposed(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                               const AttentionOptions& options);

}  // namespace lathe
