// Multi-head attention over packed sequences.
#pragma once

#include "lathe/core/ops/dropout.h"

namespace lathe {

// Where the sequences of a packed batch lie. Each has 1 to max_seqlen tokens: ops check that on the
// host; on a device they take cu_seqlens as it is.
struct PackedSequences {
  Tensor cu_seqlens = {};  // [B+1] i32
  Tensor sample_ids = {};  // [B] i32, keys of dropout masks
  int64_t max_seqlen = 0;
  int64_t num_tokens = -1;  // of all sequences; -1: cu_seqlens says so
  int64_t size() const { return cu_seqlens.dim(0) - 1; }
};

struct AttentionOptions {
  int64_t num_heads = 1;
  bool first_query_only = false;  // q has one row a sequence, that of its first token
  bool values_first = false;      // kv has values above keys
  DropoutSpec dropout = {};       // on the probabilities; its row arrays are not used
};

// softmax(q k^T / sqrt(H / num_heads)) v for each sequence and head. q: [T, H] ([B, H] for
// first_query_only), kv: [2 T, H], keys above values or as options say. Rows beyond the last
// sequence give 0. Returns q's shape. The backward pass computes the probabilities again from a
// saved log-sum a row; all gradients are assigned.
Tensor PackedAttention(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                       const AttentionOptions& options);

// The same from single ops, without dropout: documentation and test oracle.
Tensor PackedAttentionComposed(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                               const AttentionOptions& options);

}  // namespace lathe
