// Matrix products on processors without AVX-512. Blocks of both operands are copied in the order in
// which they are read, and converted to float32 on the way.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/isa.h"

namespace lathe::cpu {

// C (M, N) = op(A) op(B) + bias, or C += op(A) op(B), row-major; op(A) is (M, K), op(B) is (K, N),
// M, N, K > 0. lda, ldb and ldc are the row strides of A, B and C as stored. Sums are float32.
template <typename T, typename C>
struct PackedProduct {
  bool transpose_a, transpose_b;
  bool accumulate;  // true: C += op(A) op(B), without a bias
  int64_t M, N, K;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  C* c;
  int64_t ldc;
  const float* bias;  // (N), or null
};

// Functions are null where oneDNN's products are as fast or faster: float32's at level 2, all at
// levels 4 and 5.
struct PackedProductKernels {
  // Multiplies with all threads of OpenMP. Throws, before it writes anything, if there is no memory
  // for copies.
  template <typename T, typename C>
  using Multiply = void (*)(const PackedProduct<T, C>& product);
  Multiply<float, float> f32 = nullptr;
  Multiply<BFloat16, BFloat16> bf16 = nullptr;
  Multiply<BFloat16, float> bf16_to_f32 = nullptr;
};

}  // namespace lathe::cpu
