// Declares the device's kernels for embeddings, with and without a layer norm.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// y[r] (+)= sum_t tables[t][ids[t][r]]. An id outside its table makes the row NaN.
struct EmbeddingArgs {
  static constexpr int kMaxTables = 4;
  int64_t rows, columns;
  int num_tables;
  bool accumulate;
  const float* tables[kMaxTables] = {};  // [table_rows[t], columns]
  int64_t table_rows[kMaxTables] = {};
  const int32_t* ids[kMaxTables] = {};  // [rows]
};
namespace cpu {
struct LayerNormArgs;  // core/cpu/layer_norm.h
}
struct EmbeddingKernels {
  void (*forward)(float* y, const EmbeddingArgs& args);
  // y = dropout(layer norm(the sums)): (rows, n) of y_type: f32, bf16 or f16. Saves mean and rstd:
  // (rows). weight, bias: (n). args.accumulate must be false.
  void (*norm_forward)(void* y, DType y_type, float* mean, float* rstd, const float* weight,
                       const float* bias, const EmbeddingArgs& args,
                       const cpu::LayerNormArgs& norm);
  // dz: (rows, n), the gradient of the sums, or null. dweight, dbias: (n), to which the
  // kernel adds; both or neither may be null. It computes the sums of the tables again. partial:
  // scratch, as for cpu::LayerNormKernels.
  void (*norm_backward)(float* dz, float* dweight, float* dbias, float* partial, const void* dy,
                        DType y_type, const float* mean, const float* rstd, const float* weight,
                        const EmbeddingArgs& args, const cpu::LayerNormArgs& norm);
};

}  // namespace lathe
