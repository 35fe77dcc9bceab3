// Matrix products on the host: oneDNN for float32, a plain loop for float64 (gradient checks).
#pragma once

#include <cstdint>

namespace lathe {

// C (M, N) = op(A) op(B) + beta C, row-major; op(A) is (M, K), op(B) is (K, N); ld* are the row
// strides of A, B and C as stored.
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const double* a,
          int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc);

}  // namespace lathe
