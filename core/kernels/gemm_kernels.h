// Declares the device's matrix products.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Matrix products: see core/gemm.h. C has dtype c_type: f32, or that of A and B.
struct GemmArgs {
  bool transpose_a, transpose_b;
  int64_t M, N, K;
  const void* a;
  int64_t lda;
  const void* b;
  int64_t ldb;
  float beta;
  void* c;
  int64_t ldc;
  const float* bias;
  DType type, c_type;
  // (M) or null: set (beta 0) to the sums of op(A)'s rows, or increased by them (beta 1). For
  // dW = dy^T x that is the bias gradient. A must be transposed and C f32.
  float* a_sums = nullptr;
  // The number of products of this shape. The strides, in elements and not negative, lead from the
  // matrices of one product to those of the next; bias_stride also applies to a_sums. The Cs must
  // not overlap: they lie one behind the other, or side by side in the same rows.
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0, bias_stride = 0;
};
struct GemmKernels {
  void (*product)(const GemmArgs& args);
};

}  // namespace lathe
