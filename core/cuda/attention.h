// Attention over packed sequences on a device: what its kernels have in common. The formulas are
// those of core/cpu/attention.h.
#pragma once

#include <cstdint>

#include "lathe/core/dtype.h"

namespace lathe::cuda {

// What every attention kernel takes by value.
struct AttentionParams {
  const int32_t* cu_seqlens;  // (batch + 1), rows of k and v
  const int32_t* sample_ids;  // (batch); null without dropout
  int64_t width;              // elements of a row: heads * head_dim
  int32_t batch, heads, head_dim, max_seqlen;
  bool first_query_only;
  bool aligned;  // rows of heads lie at multiples of 16 bytes
  float scale;   // 1 / sqrt(head_dim)
  // Dropout on the probabilities; threshold 0: none.
  float keep_scale;
  uint32_t threshold, key0, key1, step;
  const int32_t* device_step;  // if set, the step is here instead
};

// The plain kernels: head_dim up to 256, products in float32. Shapes as in core/cpu/attention.h.
// dots: (Tq, heads), scratch for sum_j dO_ij O_ij.
template <typename T>
void PlainAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                           const AttentionParams& params);
template <typename T>
void PlainAttentionBackward(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                            const float* lse, const T* q, const T* k, const T* v,
                            const AttentionParams& params);

// The same on tensor cores, which take T's products and add them up in float32; T is BFloat16 or
// Float16, head_dim at most 128. Probabilities and dS are rounded to T on the way.
template <typename T>
void TensorCoreAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                                const AttentionParams& params);
template <typename T>
void TensorCoreAttentionBackward(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                                 const float* lse, const T* q, const T* k, const T* v,
                                 const AttentionParams& params);

// Which kernels run, and why in a few words.
struct AttentionChoice {
  bool tensor_cores;
  const char* why;
};
AttentionChoice AttentionPath(int64_t head_dim, DType dtype, int64_t max_seqlen);

}  // namespace lathe::cuda
