// The kernels of attention whose scores have terms: a window, or tables of relative positions.
// core/cpu/attention.h has the formulas. These kernels compute all products in float32, without
// tensor cores.
#pragma once

#include <cstdint>

#include "lathe/core/cuda/attention/attention.h"
#include "lathe/core/cuda/attention/attention_terms_shape.h"

namespace lathe::cuda {

// The parameters that these kernels take by value, besides AttentionParams. An offset is the
// position of the query minus that of the key.
struct AttentionTerms {
  int32_t window;  // a query sees keys whose offset is in [-window, window]
  // The row of offset o in all tables is rows[o + origin], for o in [-origin, origin]. Null without
  // tables. Scores whose row is not in [0, table_rows) become NaN.
  const int32_t* rows;
  int32_t origin, table_rows;
  const float* bias;    // [table_rows, heads] or null
  const void* keys;     // [table_rows, table_width] of the type of q, or null
  const void* queries;  // the same
  int64_t table_width;  // heads * head_dim, or head_dim if all heads share the tables
};

// Shapes are those of core/cpu/attention.h.
template <typename T>
void TermsAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                           const AttentionTerms& terms, const AttentionParams& params);

// The gradients of the tables, with the tables' shapes and types. Null where none is wanted.
struct TableGradients {
  float* bias;
  void* keys;
  void* queries;
};
// Assigns all gradients. dots: [Tq, heads] is scratch for sum_j dO_ij O_ij. `sums` points to zeroed
// scratch memory for each table whose gradient is wanted.
template <typename T>
void TermsAttentionBackward(T* dq, T* dk, T* dv, const TableGradients& tables, float* dots,
                            const OffsetSums& sums, const T* dout, const T* out, const float* lse,
                            const T* q, const T* k, const T* v, const AttentionTerms& terms,
                            const AttentionParams& params);

// Turns sums by offset into the gradients of the tables. It overwrites the sums.
template <typename T>
void SumsToTables(const TableGradients& tables, const OffsetSums& sums, const AttentionTerms& terms,
                  const AttentionParams& params);

}  // namespace lathe::cuda
