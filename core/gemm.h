// Matrix products on the host. Products of float32 and bfloat16 use oneDNN, or Lathe's own kernels
// where these are faster (cpu/packed_product.h). Products of float64, which gradient checks need,
// use a plain loop.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "lathe/core/base/dtype.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/core/transposes.h"

namespace lathe {

// C (M, N) = op(A) op(B) + beta C, row-major; op(A) is (M, K), op(B) is (K, N). ld* are the row
// strides of A, B and C as stored. beta is 0 or 1. bias (N), if given, is added to each row of C
// and requires beta 0.
void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc,
          const float* bias = nullptr);
void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc,
          const double* bias = nullptr);
// Sums are formed in float32, whatever the dtype of C.
void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const BFloat16* a, int64_t lda,
          const BFloat16* b, int64_t ldb, float beta, BFloat16* c, int64_t ldc,
          const float* bias = nullptr);
void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const BFloat16* a, int64_t lda,
          const BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc,
          const float* bias = nullptr);

// Does the same on any device. On a device other than the host, A and B are float, BFloat16 or
// Float16; C has their type or float; sums are float.
template <typename T, typename C>
void Gemm(Device device, Transposes transposes, int64_t M, int64_t N, int64_t K, const T* a,
          int64_t lda, const T* b, int64_t ldb, double beta, C* c, int64_t ldc,
          const std::conditional_t<std::is_same_v<T, double>, double, float>* bias = nullptr) {
  if (device.is_cpu()) {
    if constexpr (std::is_same_v<T, double>) {
      return Gemm(transposes, M, N, K, a, lda, b, ldb, beta, c, ldc, bias);
    } else if constexpr (!std::is_same_v<T, Float16>) {
      return Gemm(transposes, M, N, K, a, lda, b, ldb, static_cast<float>(beta), c, ldc, bias);
    }
  } else if constexpr (!std::is_same_v<T, double>) {
    return DeviceKernels<GemmKernels>().product({.transpose_a = transposes.a,
                                                 .transpose_b = transposes.b,
                                                 .M = M,
                                                 .N = N,
                                                 .K = K,
                                                 .a = a,
                                                 .lda = lda,
                                                 .b = b,
                                                 .ldb = ldb,
                                                 .beta = static_cast<float>(beta),
                                                 .c = c,
                                                 .ldc = ldc,
                                                 .bias = bias,
                                                 .type = DTypeOf<T>::value,
                                                 .c_type = DTypeOf<C>::value});
  }
  throw InvalidArgument("[gemm] the CPU can't multiply float16, and a GPU can't multiply float64");
}

// Returns false if this processor has no instructions for bfloat16 products. They then go through
// float32: correct, but no faster than float32 products.
bool HasFastBFloat16();

// Returns a one-line note if mixed precision ("no", "bf16", "fp16") brings no speed on `device`;
// returns "" otherwise.
std::string SlowPrecisionNote(const std::string& precision, Device device);

// Returns the smallest number of rows, `rows` or more, at which products with matrices of `dtype`
// run at full speed on this processor. Such numbers are few, because products are prepared for
// each.
int64_t FullSpeedRows(int64_t rows, DType dtype);

}  // namespace lathe
