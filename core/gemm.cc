#include "lathe/core/gemm.h"

#include <dnnl.h>

#include "lathe/core/error.h"

namespace lathe {

void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (M == 0 || N == 0) return;
  if (K == 0) {
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < N; ++n) c[m * ldc + n] = beta == 0 ? 0 : beta * c[m * ldc + n];
    }
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', M, N, K,
                                          1.0f, a, lda, b, ldb, beta, c, ldc);
  Check(status == dnnl_success, "gemm", "oneDNN failed with status ", static_cast<int>(status),
        " for M, N, K = ", M, ", ", N, ", ", K);
}

void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const double* a,
          int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) {
        sum += (transpose_a ? a[k * lda + m] : a[m * lda + k]) *
               (transpose_b ? b[n * ldb + k] : b[k * ldb + n]);
      }
      c[m * ldc + n] = sum + (beta == 0 ? 0 : beta * c[m * ldc + n]);
    }
  }
}

}  // namespace lathe
