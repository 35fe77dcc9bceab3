// Matrix products on the host: oneDNN for float32 and bfloat16, or Lathe's own kernels where those
// are faster (cpu/packed_product.h), a plain loop for float64 (gradient checks).
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "lathe/core/device_kernels.h"
#include "lathe/core/dtype.h"

namespace lathe {

// C (M, N) = op(A) op(B) + beta C, row-major; op(A) is (M, K), op(B) is (K, N); ld* are the row
// strides of A, B and C as stored. beta is 0 or 1. bias (N), if given, is added to each row of C;
// with beta 0 only.
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc,
          const float* bias = nullptr);
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const double* a,
          int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc,
          const double* bias = nullptr);
// Sums are formed in float32 whatever C is.
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const BFloat16* a,
          int64_t lda, const BFloat16* b, int64_t ldb, float beta, BFloat16* c, int64_t ldc,
          const float* bias = nullptr);
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, const BFloat16* a,
          int64_t lda, const BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc,
          const float* bias = nullptr);

// The same on any device: A and B of float, BFloat16 or Float16 there, C of their type or float,
// sums in float.
template <typename T, typename C>
void Gemm(Device device, bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K,
          const T* a, int64_t lda, const T* b, int64_t ldb, double beta, C* c, int64_t ldc,
          const std::conditional_t<std::is_same_v<T, double>, double, float>* bias = nullptr) {
  if (device.type == DeviceType::kCPU) {
    if constexpr (std::is_same_v<T, double>) {
      return Gemm(transpose_a, transpose_b, M, N, K, a, lda, b, ldb, beta, c, ldc, bias);
    } else if constexpr (!std::is_same_v<T, Float16>) {
      return Gemm(transpose_a, transpose_b, M, N, K, a, lda, b, ldb, static_cast<float>(beta), c,
                  ldc, bias);
    }
  } else if constexpr (!std::is_same_v<T, double>) {
    return DeviceKernels<GemmKernels>().product({transpose_a, transpose_b, M, N, K, a, lda, b, ldb,
                                                 static_cast<float>(beta), c, ldc, bias,
                                                 DTypeOf<T>::value, DTypeOf<C>::value});
  }
  throw InvalidArgument("[gemm] the CPU has no float16, other devices no float64");
}

// False if this processor has no instructions for bfloat16 products: they are then computed in
// float32, which is right and slow.
bool HasFastBFloat16();

// One line for whoever asks for mixed precision ("no", "bf16", "fp16") on `device`, if it is slow
// there; else empty.
std::string SlowPrecisionNote(const std::string& precision, Device device);

// The least number from `rows` on that products of matrices of `dtype` with so many rows take at
// full speed on this processor. There are few such numbers, since products are prepared for each.
int64_t FullSpeedRows(int64_t rows, DType dtype);

}  // namespace lathe
