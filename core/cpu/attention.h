// Attention over packed sequences, in tiles of queries; the backward pass computes the
// probabilities again.
//
// For each sequence s and head h, with d columns a head:
//   P = softmax(Q K^T / sqrt(d));  O = dropout(P) V
#pragma once

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/dropout.h"

namespace lathe::cpu {

struct AttentionArgs {
  const int32_t* cu_seqlens;  // (batch + 1), rows of k and v
  const int32_t* sample_ids;  // (batch), keys of the dropout masks; may be null without dropout
  int64_t batch, heads, head_dim, max_seqlen;
  int64_t q_rows;         // Tq
  bool first_query_only;  // q and out have one row a sequence: that of its first token
  DropoutMask mask;       // its row arrays are not used
};

struct AttentionKernels {
  template <typename T, typename M = MathType<T>>
  struct Of {
    // out: (Tq, H). Saved: lse, (Tq, heads), log of the sum of exponentials; the host takes null
    // for it where no backward pass will follow. q: (Tq, H); k, v: (T, H).
    void (*forward)(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args);
    // dq: (Tq, H), dk, dv: (T, H); all assigned.
    void (*backward)(T* dq, T* dk, T* dv, const T* dout, const T* out, const M* lse, const T* q,
                     const T* k, const T* v, const AttentionArgs& args);
  };
  Of<float> f32;
  Of<double> f64;
  Of<BFloat16> bf16;
  Of<Float16> f16 = {};  // on other devices than the host
};

}  // namespace lathe::cpu
