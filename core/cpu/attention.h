// Attention over packed sequences, one tile of queries at a time. The backward pass recomputes the
// probabilities.
//
// For each sequence s and head h, with d columns per head:
//   P = softmax(Q K^T / sqrt(d));  O = dropout(P) V
#pragma once

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/dropout.h"

namespace lathe::cpu {

struct AttentionArgs {
  const int32_t* cu_seqlens;  // (batch + 1): where each sequence's rows of k and v begin
  const int32_t* sample_ids;  // (batch): select the dropout masks; may be null without dropout
  int64_t batch, heads, head_dim, max_seqlen;
  int64_t q_rows;         // Tq, the rows of q and out
  bool first_query_only;  // q and out have one row per sequence, that of its first token
  DropoutMask mask;       // its row arrays are not used
};

struct AttentionKernels {
  template <typename T, typename M = MathType<T>>
  struct ForType {
    // out: (Tq, H), q: (Tq, H), k and v: (T, H). Sets lse: (Tq, heads) to the logarithm of each
    // query's sum of exponentials, for the backward pass. On the host lse may be null if no
    // backward pass follows.
    void (*forward)(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args);
    // Assigns dq: (Tq, H), dk and dv: (T, H).
    void (*backward)(T* dq, T* dk, T* dv, const T* dout, const T* out, const M* lse, const T* q,
                     const T* k, const T* v, const AttentionArgs& args);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
};

}  // namespace lathe::cpu
