// The kernels of attention over packed sequences on a device. core/cpu/attention.h has the
// formulas.
#pragma once

#include <cmath>
#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/cpu/attention.h"

namespace lathe::cuda {

// The parameters that every attention kernel takes by value.
struct AttentionParams {
  const int32_t* cu_seqlens;  // [batch + 1], in rows of k and v
  const int32_t* sample_ids;  // [batch]; null without dropout
  int64_t width;              // elements of a row: heads * head_dim
  int32_t batch, heads, head_dim, max_seqlen;
  bool first_query_only;
  bool aligned;  // true if each head's rows begin at multiples of 16 bytes
  float scale;   // of the scores
  // Dropout on the probabilities. Threshold 0 means none.
  float keep_scale;
  uint32_t threshold, key0, key1, step;
  const int32_t* device_step;  // if set, the step is read from here
};

// The plain kernels: head_dim is at most 256, and products are computed in float32. Shapes are
// those of core/cpu/attention.h. dots: [Tq, heads] is scratch for sum_j dO_ij O_ij.
template <typename T>
void PlainAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                           const AttentionParams& params);
template <typename T>
void PlainAttentionBackward(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                            const float* lse, const T* q, const T* k, const T* v,
                            const AttentionParams& params);

// The same passes on tensor cores, which multiply elements of type T and add the products up in
// float32. T is BFloat16 or Float16, and head_dim is at most 128. Probabilities and dS are rounded
// to T before they are multiplied.
template <typename T>
void TensorCoreAttentionForward(T* out, float* lse, const T* q, const T* k, const T* v,
                                const AttentionParams& params);
template <typename T>
void TensorCoreAttentionBackward(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                                 const float* lse, const T* q, const T* k, const T* v,
                                 const AttentionParams& params);

// The choice between plain and tensor core kernels, with the reason in a few words.
struct AttentionChoice {
  bool tensor_cores;
  const char* why;
};
AttentionChoice ChooseAttentionKernels(int64_t head_dim, DType dtype, int64_t max_seqlen);
// Returns the scale of the scores, 1 / sqrt(head_dim) unless `args` give another.
inline float ScaleOf(const cpu::AttentionArgs& args) {
  return args.scale == 0 ? 1 / std::sqrt(static_cast<float>(args.head_dim))
                         : static_cast<float>(args.scale);
}
// Returns true if the scores have relative terms, or a window that may leave out a key.
inline bool HasTerms(const cpu::AttentionArgs& args) {
  return args.relative.rows != nullptr || (args.window >= 0 && args.window < args.max_seqlen - 1);
}

}  // namespace lathe::cuda
