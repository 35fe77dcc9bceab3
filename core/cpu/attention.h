// Attention over packed sequences, one tile of queries at a time. The backward pass recomputes the
// probabilities.
//
// For each sequence s and head h, with d columns per head:
//   P = softmax(Q K^T / sqrt(d));  O = dropout(P) V
// A call may give another scale than 1 / sqrt(d), a window, and terms that depend on how far a
// query is from a key (RelativeTerms).
#pragma once

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/dropout.h"

namespace lathe::cpu {

// Terms of the scores that depend on a query i and a key j only by the offset i - j. Row
// r = rows[i - j + origin] of each table that is given counts for them:
//   score = scale * (q_i . k_j + q_i . keys[r] + k_j . queries[r]) + bias[r]
// With keys or queries, rows never decrease with the offset. Tables have the dtypes of
// RelativePositions (core/ops/attention.h).
struct RelativeTerms {
  const int32_t* rows =
      nullptr;                 // (2 origin + 1): a row for each offset; null if there are no terms
  int64_t origin = 0;          // max_seqlen - 1 or more
  int64_t table_rows = 0;      // R
  bool shared = false;         // keys and queries are (R, d), shared by all heads; otherwise (R, H)
  const void* bias = nullptr;  // (R, heads); null: no such term, as for the next two
  const void* keys = nullptr;
  const void* queries = nullptr;
  // The backward pass assigns the gradients of the tables to these. Null where none is wanted.
  // Their sums don't depend on the number of threads.
  void* dbias = nullptr;
  void* dkeys = nullptr;
  void* dqueries = nullptr;
};

struct AttentionArgs {
  const int32_t* cu_seqlens;  // (batch + 1): where each sequence's rows of k and v begin
  const int32_t* sample_ids;  // (batch): select the dropout masks; may be null without dropout
  int64_t batch, heads, head_dim, max_seqlen;  // each at least 1
  int64_t q_rows;                              // Tq, the rows of q and out
  bool first_query_only;  // q and out have one row per sequence, that of its first token
  DropoutMask mask;       // its row arrays are not used
  double scale = 0;       // of the scores; 0: 1 / sqrt(head_dim)
  int64_t window = -1;    // query i sees only keys j with |i - j| <= window; -1: all keys
  RelativeTerms relative = {};
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
