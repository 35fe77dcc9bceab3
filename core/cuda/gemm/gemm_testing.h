// Helpers for tests of gemm.cc with a library that computes on the host (fake_cublaslt.h).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "lathe/core/base/gemm_options.h"
#include "lathe/core/cuda/gemm/fake_cublaslt.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/gemm_kernels.h"

namespace lathe::cuda {

class Gemms : public testing::Test {
 protected:
  void SetUp() override {
    Fake() = {};
    SetGemmOptions({});
    setenv("LATHE_TUNE_CACHE", "", 1);
  }
  void TearDown() override {
    for (const std::string& mistake : Fake().mistakes) ADD_FAILURE() << mistake;
    SetGemmOptions({});
  }
};

// A matrix that begins `shift` elements behind a multiple of 256 bytes.
template <typename T>
struct Matrix {
  Matrix(int64_t elements, int64_t shift, float seed)
      : memory(static_cast<size_t>(elements + shift + 256)) {
    const auto past = reinterpret_cast<uintptr_t>(memory.data()) % 256;
    data = memory.data() + (past == 0 ? 0 : (256 - past) / sizeof(T)) + shift;
    for (int64_t i = 0; i < elements; ++i) {
      data[i] = T(std::sin(seed + static_cast<float>(i)));
    }
  }
  std::vector<T> memory;
  T* data;
};

struct Case {
  int64_t M, N, K;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  int64_t pad = 0, shift = 0;
  bool sums = false;  // of A's rows
};

// Returns the arguments of a product like `t`. `bias` and `sums` may be null if `t` has none.
template <typename T, typename C>
GemmArgs ArgsOf(const Case& t, const T* a, const T* b, C* c, const float* bias = nullptr,
                float* sums = nullptr) {
  return {
      .transpose_a = t.transpose_a,
      .transpose_b = t.transpose_b,
      .M = t.M,
      .N = t.N,
      .K = t.K,
      .a = a,
      .lda = (t.transpose_a ? t.M : t.K) + t.pad,
      .b = b,
      .ldb = (t.transpose_b ? t.K : t.N) + t.pad,
      .beta = t.accumulate ? 1.0f : 0.0f,
      .c = c,
      .ldc = t.N + t.pad,
      .bias = t.bias ? bias : nullptr,
      .type = DTypeOf<T>::value,
      .c_type = DTypeOf<C>::value,
      .a_sums = t.sums ? sums : nullptr,
  };
}

// Runs the product and compares it with a loop. C's padding must not change.
template <typename T, typename C>
void Try(const Case& t) {
  SCOPED_TRACE(testing::Message() << t.M << " " << t.N << " " << t.K << " " << t.transpose_a
                                  << t.transpose_b << t.accumulate << t.bias << " " << t.pad << " "
                                  << t.shift);
  const int64_t lda = (t.transpose_a ? t.M : t.K) + t.pad, a_rows = t.transpose_a ? t.K : t.M;
  const int64_t ldb = (t.transpose_b ? t.K : t.N) + t.pad, b_rows = t.transpose_b ? t.N : t.K;
  const int64_t ldc = t.N + t.pad;
  const Matrix<T> a(a_rows * lda, t.shift, 1), b(b_rows * ldb, t.shift, 2);
  const Matrix<C> c(t.M * ldc, t.shift, 3), before(t.M * ldc, t.shift, 3);
  const Matrix<float> bias(t.N, t.shift, 4);
  const Matrix<float> sums(t.M, t.shift, 5), sums_before(t.M, t.shift, 5);
  DeviceKernels<GemmKernels>().product(ArgsOf(t, a.data, b.data, c.data, bias.data, sums.data));
  const double tolerance = std::is_same_v<C, float>     ? 1e-5
                           : std::is_same_v<C, Float16> ? 2e-3
                                                        : 2e-2;
  for (int64_t r = 0; r < t.M; ++r) {
    for (int64_t j = 0; j < ldc; ++j) {
      const float is = c.data[r * ldc + j], was = before.data[r * ldc + j];
      if (j >= t.N) {
        ASSERT_EQ(is, was) << "padding";
        continue;
      }
      double sum = t.accumulate ? was : 0;
      for (int64_t i = 0; i < t.K; ++i) {
        sum += static_cast<double>(
                   static_cast<float>(a.data[t.transpose_a ? i * lda + r : r * lda + i])) *
               static_cast<float>(b.data[t.transpose_b ? j * ldb + i : i * ldb + j]);
      }
      if (t.bias) sum += bias.data[j];
      ASSERT_NEAR(is, sum, tolerance * (1 + std::abs(sum))) << r << ", " << j;
    }
  }
  for (int64_t m = 0; t.sums && m < t.M; ++m) {
    double sum = t.accumulate ? sums_before.data[m] : 0;
    for (int64_t i = 0; i < t.K; ++i) sum += static_cast<float>(a.data[i * lda + m]);
    ASSERT_NEAR(sums.data[m], sum, 1e-5 * (1 + std::abs(sum))) << "sum " << m;
  }
}

// Returns a product with the sums of A's rows.
inline Case WithSums(int64_t M, int64_t N, int64_t K, bool accumulate = false, int64_t pad = 0,
                     int64_t shift = 0) {
  return {.M = M,
          .N = N,
          .K = K,
          .transpose_a = true,
          .accumulate = accumulate,
          .pad = pad,
          .shift = shift,
          .sums = true};
}

}  // namespace lathe::cuda
