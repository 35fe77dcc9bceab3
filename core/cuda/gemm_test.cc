// What gemm.cc asks of cuBLASLt, and when; with a library that computes on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lathe/core/cuda/device.h"
#include "lathe/core/cuda/fake_cublaslt.h"
#include "lathe/core/cuda/gemm_problem.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/error.h"
#include "lathe/core/file.h"
#include "lathe/core/gemm_options.h"
#include "lathe/core/log.h"

namespace lathe::cuda {
namespace {

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

// 256-byte aligned but for `shift` elements.
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

// Runs it and compares with a loop; C's padding must stay.
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
  DeviceKernels<GemmKernels>().product({t.transpose_a, t.transpose_b, t.M, t.N, t.K, a.data, lda,
                                        b.data, ldb, t.accumulate ? 1.0f : 0.0f, c.data, ldc,
                                        t.bias ? bias.data : nullptr, DTypeOf<T>::value,
                                        DTypeOf<C>::value, t.sums ? sums.data : nullptr});
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

// A product with the sums of A's rows.
Case WithSums(int64_t M, int64_t N, int64_t K, bool accumulate = false, int64_t pad = 0,
              int64_t shift = 0) {
  return {M, N, K, true, false, accumulate, false, pad, shift, true};
}

TEST_F(Gemms, AreRightForAllTypesLayoutsAndAddresses) {
  for (int bits = 0; bits < 4; ++bits) {
    for (const auto& [M, N, K] : {std::tuple{5, 7, 3},
                                  {1, 9, 4},
                                  {8, 1, 6},
                                  {16, 8, 32},
                                  {3, 2, 1},
                                  {4, 5, 0},
                                  {0, 5, 3},
                                  {4, 0, 3},
                                  {0, 0, 0}}) {
      for (const int64_t pad : {0, 3}) {
        for (const int64_t shift : {0, 1, 8}) {
          for (int extra = 0; extra < 3; ++extra) {
            const Case t = {M,          N,   K,    (bits & 1) != 0, (bits & 2) != 0, extra == 1,
                            extra == 2, pad, shift};
            Try<float, float>(t);
            Try<BFloat16, BFloat16>(t);
            Try<BFloat16, float>(t);
            Try<Float16, Float16>(t);
            Try<Float16, float>(t);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(Gemms, SumRowsOfAInTheirEpilogue) {
  Try<BFloat16, float>(WithSums(40, 24, 17));
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  Try<float, float>(WithSums(5, 3, 2));
  Try<Float16, float>(WithSums(5, 3, 2, false, 3));
  EXPECT_EQ(Fake().column_sums, 0);
  EXPECT_EQ(Fake().heuristics, 3);
  Try<BFloat16, float>(WithSums(40, 24, 17));
  EXPECT_EQ(Fake().heuristics, 3);
}

TEST_F(Gemms, SumRowsOfAApartWhereTheEpilogueCannot) {
  int sums = 0;
  const auto apart = [&](const Case& t) {
    Try<BFloat16, float>(t);
    Try<Float16, float>(t);
    Try<float, float>(t);
    sums += 3;
    EXPECT_EQ(Fake().column_sums, sums);
    for (const auto& product : Fake().products) EXPECT_FALSE(product.bias_gradient);
  };
  apart(WithSums(40, 24, 18, true));         // it overwrites
  apart(WithSums(40, 24, 18, false, 0, 1));  // an address that it can't write to
  apart(WithSums(4, 5, 0));
  apart(WithSums(4, 0, 5));
  apart(WithSums(4, 0, 5, true));
  apart(WithSums(0, 4, 5));
  UseDeterministicGemms(true);  // in an order that is known
  apart(WithSums(40, 24, 18));
  UseDeterministicGemms(false);
  Fake().has_bias_gradients = false;
  apart(WithSums(40, 24, 19));
  // The library isn't asked again, and so needn't be while a step is recorded.
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  apart(WithSums(40, 24, 19));
  EXPECT_EQ(Fake().heuristics, heuristics);
}

TEST_F(Gemms, SumRowsOfAApartIfTheEpilogueFails) {
  Fake().bias_gradients_fail = true;
  for (int i = 0; i < 2; ++i) Try<BFloat16, float>(WithSums(39, 24, 17));
  EXPECT_EQ(Fake().column_sums, 2);
  EXPECT_EQ(Fake().products.size(), 3u);  // it is tried once
}

// What was refused while a step was recorded is asked for again afterwards.
TEST_F(Gemms, AskAgainForWhatWasRefusedInRecordedWork) {
  Try<BFloat16, float>({40, 24, 20, true});
  Fake().capturing = true;
  Fake().has_bias_gradients = false;
  Try<BFloat16, float>(WithSums(40, 24, 20));
  EXPECT_EQ(Fake().column_sums, 1);
  Fake().capturing = false;
  Fake().has_bias_gradients = true;
  Try<BFloat16, float>(WithSums(40, 24, 20));
  EXPECT_EQ(Fake().column_sums, 1);
  EXPECT_TRUE(Fake().products.back().bias_gradient);
}

// Products of one row, column or summand have no epilogue for a bias.
TEST_F(Gemms, AddTheBiasApartWhereTheLibraryHasNoEpilogue) {
  int added = 0;
  const auto apart = [&](const Case& t) {
    Try<float, float>(t);
    Try<BFloat16, BFloat16>(t);
    Try<BFloat16, float>(t);
    Try<Float16, Float16>(t);
    Try<Float16, float>(t);
    added += 5;
    EXPECT_EQ(Fake().added_rows, added);
    for (const auto& product : Fake().products) EXPECT_FALSE(product.bias);
  };
  for (const int64_t pad : {0, 3}) {
    for (const int64_t shift : {0, 1, 8}) {
      apart({32, 1, 24, false, true, false, true, pad, shift});  // one label
      apart({1, 24, 16, false, true, false, true, pad, shift});  // one row
      apart({1, 1, 16, false, true, false, true, pad, shift});
      apart({8, 24, 1, true, false, false, true, pad, shift});
      apart({8, 24, 0, false, false, false, true, pad, shift});
    }
  }
  // Addresses for which there is none.
  Fake().least_bias_alignment = 8;
  apart({32, 24, 17, false, true, false, true, 0, 1});
  apart({32, 24, 17, false, true, false, true, 0, 3});
  Fake().products.clear();
  Try<BFloat16, BFloat16>({32, 24, 17, false, true, false, true, 0, 8});
  EXPECT_EQ(Fake().added_rows, added);
  EXPECT_TRUE(Fake().products.back().bias);
  // The library isn't asked again, and so needn't be while a step is recorded.
  Fake().products.clear();
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  apart({32, 1, 24, false, true, false, true});
  EXPECT_EQ(Fake().heuristics, heuristics);
  EXPECT_EQ(Fake().products.size(), 5u);
}

TEST_F(Gemms, AddTheBiasApartIfTheEpilogueFails) {
  Fake().biases_fail = true;
  for (int i = 0; i < 2; ++i) Try<BFloat16, BFloat16>({32, 24, 21, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 2);
  EXPECT_EQ(Fake().products.size(), 3u);  // it is tried once
  // Algorithms that fail when they are timed, too.
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  for (int i = 0; i < 2; ++i) Try<Float16, float>({32, 24, 21, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 4);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
}

// What a product lacks is said once, to those who want to know.
TEST_F(Gemms, SayWhatComesApart) {
  const auto said = [&](const Case& t) {
    ShowDebugLog(true);
    testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) Try<BFloat16, BFloat16>(t);
    ShowDebugLog(false);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said({32, 24, 22, false, true, false, true}), "");
  const std::string none = said({32, 1, 22, false, true, false, true});
  EXPECT_TRUE(none.starts_with("debug: cuBLASLt has no algorithm for ")) << none;
  EXPECT_EQ(std::count(none.begin(), none.end(), '\n'), 1);
  Fake().biases_fail = true;
  const std::string failed = said({32, 24, 26, false, true, false, true});
  EXPECT_TRUE(failed.starts_with("debug: cuBLASLt refuses ")) << failed;
  EXPECT_EQ(std::count(failed.begin(), failed.end(), '\n'), 1);
}

// What fails while work is recorded is asked for again afterwards.
TEST_F(Gemms, TakeBiasesThatFailedWhileRecording) {
  Fake().capturing = Fake().biases_fail = true;
  Try<BFloat16, BFloat16>({32, 24, 27, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 1);
  Fake().capturing = Fake().biases_fail = false;
  Try<BFloat16, BFloat16>({32, 24, 27, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 1);
}

// In work that is recorded first, and with algorithms that are tuned, too.
TEST_F(Gemms, AddTheBiasApartWheneverItIsAskedFor) {
  Fake().capturing = true;
  Try<BFloat16, BFloat16>({32, 1, 25, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 1);
  Fake().capturing = false;
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  for (int i = 0; i < 2; ++i) Try<BFloat16, BFloat16>({32, 1, 25, false, true, false, true});
  EXPECT_EQ(Fake().added_rows, 3);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  Try<BFloat16, BFloat16>({32, 1, 25, false, true, false, true});
  EXPECT_EQ(Fake().heuristics, heuristics);
  // Without a plain product it is an error.
  Fake().heuristic_fails = true;
  EXPECT_THROW((Try<BFloat16, BFloat16>({32, 1, 26, false, true, false, true})), Error);
}

// Like `t`, `batch` times: with one A for all, Bs and Cs apart from each other, the latter in
// either order. Compares with products of their own.
template <typename T, typename C>
void TryBatch(const Case& t, int64_t batch, int64_t gap = 8) {
  SCOPED_TRACE(testing::Message() << batch << " times " << t.M << " " << t.N << " " << t.K);
  const int64_t lda = t.transpose_a ? t.M : t.K, ldb = t.transpose_b ? t.K : t.N;
  const int64_t a_size = t.M * t.K, b_stride = t.N * t.K + gap, c_stride = t.M * t.N + 2 * gap;
  const int64_t bias_stride = std::max(t.M, t.N) + gap;
  const Matrix<T> a(a_size + gap * batch, t.shift, 1), b(b_stride * batch, t.shift, 2);
  const Matrix<C> c(c_stride * batch, t.shift, 3), expected(c_stride * batch, t.shift, 3);
  const Matrix<float> bias(bias_stride * batch, 0, 4), sums(bias_stride * batch, 0, 5);
  const Matrix<float> expected_sums(bias_stride * batch, 0, 5);
  GemmArgs args = {t.transpose_a,
                   t.transpose_b,
                   t.M,
                   t.N,
                   t.K,
                   a.data,
                   lda,
                   b.data,
                   ldb,
                   t.accumulate ? 1.0f : 0.0f,
                   expected.data,
                   t.N,
                   t.bias ? bias.data : nullptr,
                   DTypeOf<T>::value,
                   DTypeOf<C>::value,
                   t.sums ? expected_sums.data : nullptr,
                   batch,
                   t.sums ? gap : 0,
                   b_stride,
                   c_stride,
                   bias_stride};
  for (int64_t i = 0; i < batch; ++i) DeviceKernels<GemmKernels>().product(OneOf(args, i));
  args.c = c.data;
  if (t.sums) args.a_sums = sums.data;
  DeviceKernels<GemmKernels>().product(args);
  for (int64_t i = 0; i < c_stride * batch; ++i) {
    ASSERT_EQ(static_cast<float>(c.data[i]), static_cast<float>(expected.data[i])) << i;
  }
  for (int64_t i = 0; i < bias_stride * batch; ++i) {
    ASSERT_EQ(sums.data[i], expected_sums.data[i]) << "sum " << i;
  }
}

TEST_F(Gemms, OfABatchAreOne) {
  for (int bits = 0; bits < 4; ++bits) {
    for (int extra = 0; extra < 3; ++extra) {
      const Case t = {5, 8, 3, (bits & 1) != 0, (bits & 2) != 0, extra == 1, extra == 2};
      for (const int64_t gap : {8, 3, 0}) {
        TryBatch<float, float>(t, 2, gap);
        TryBatch<BFloat16, BFloat16>(t, 3, gap);
        EXPECT_EQ(Fake().products.back().batch, 3);
        TryBatch<Float16, float>(t, 2, gap);
        EXPECT_EQ(Fake().products.back().batch, 2);
      }
    }
  }
  TryBatch<BFloat16, float>(WithSums(16, 8, 5), 2);
  EXPECT_EQ(Fake().products.back().batch, 2);
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  EXPECT_EQ(Fake().column_sums, 0);
  // Other distances are no other problem.
  const int heuristics = Fake().heuristics;
  TryBatch<BFloat16, float>(WithSums(16, 8, 5), 2, 8 + 128);
  EXPECT_EQ(Fake().heuristics, heuristics);
}

TEST_F(Gemms, OfABatchComeOneByOneWhereTheyMust) {
  const auto apart = [&](const Case& t) {
    TryBatch<BFloat16, float>(t, 2);
    TryBatch<Float16, float>(t, 3);
    for (const auto& product : Fake().products) EXPECT_EQ(product.batch, 1);
  };
  apart({0, 8, 3});
  apart({8, 0, 3});
  apart({8, 8, 0, false, false, false, true});
  apart(WithSums(8, 8, 0));
  apart(WithSums(16, 8, 6, true));
  UseDeterministicGemms(true);
  apart(WithSums(16, 8, 6));
  UseDeterministicGemms(false);
  Fake().has_batches = false;
  apart(WithSums(16, 8, 7));
  apart({16, 8, 7, false, true, false, true});
  const int heuristics = Fake().heuristics;
  Fake().capturing = true;
  apart(WithSums(16, 8, 7));
  apart({16, 8, 7, false, true, false, true});
  EXPECT_EQ(Fake().heuristics, heuristics);
}

TEST_F(Gemms, OfABatchWithBiasesComeOneByOneWhereTheLibraryHasNoEpilogue) {
  TryBatch<BFloat16, BFloat16>({1, 8, 5, false, true, false, true}, 3);
  TryBatch<Float16, float>({8, 1, 5, false, true, false, true}, 3);
  for (const auto& product : Fake().products) {
    EXPECT_EQ(product.batch, 1);
    EXPECT_FALSE(product.bias);
  }
  EXPECT_EQ(Fake().added_rows, 2 * 6);
}

TEST_F(Gemms, OfABatchComeAsIsFasterWhenTuned) {
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  Fake().batch_milliseconds = 3;
  TryBatch<BFloat16, float>({16, 8, 12, true, false, true}, 2);
  EXPECT_EQ(Fake().products.back().batch, 2);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  Fake().batch_milliseconds = 5;
  TryBatch<BFloat16, float>({16, 8, 13, true, false, true}, 2);
  EXPECT_EQ(Fake().products.back().batch, 1);
  TryBatch<BFloat16, float>(WithSums(16, 8, 13), 2);
  EXPECT_EQ(Fake().products.back().batch, 1);
}

TEST_F(Gemms, OfNoColumnsOrRowsAskForNothing) {
  Try<float, float>({0, 4, 4});
  Try<float, float>({4, 0, 4});
  Try<float, float>({4, 4, 0, false, false, true});
  EXPECT_TRUE(Fake().products.empty());
}

TEST_F(Gemms, ArePlannedOnce) {
  for (int i = 0; i < 3; ++i) Try<BFloat16, BFloat16>({40, 24, 16});
  EXPECT_EQ(Fake().heuristics, 1);
  EXPECT_EQ(Fake().requested, 1);
  EXPECT_EQ(Fake().products.size(), 3u);
  Try<BFloat16, BFloat16>({41, 24, 16});
  Try<BFloat16, BFloat16>({40, 24, 16, false, false, true});
  Try<BFloat16, BFloat16>({40, 24, 16, false, false, false, true});
  Try<BFloat16, BFloat16>({40, 24, 16, false, false, false, false, 0, 1});
  EXPECT_EQ(Fake().heuristics, 5);
}

TEST_F(Gemms, SumInFloat32AndInTF32OnlyWhenAsked) {
  Try<float, float>({6, 7, 9});
  EXPECT_EQ(Fake().products.back().compute, CUBLAS_COMPUTE_32F);
  AllowTf32(true);
  Try<float, float>({6, 7, 9});
  EXPECT_EQ(Fake().products.back().compute, CUBLAS_COMPUTE_32F_FAST_TF32);
  Try<BFloat16, float>({6, 7, 9});
  EXPECT_EQ(Fake().products.back().compute, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(Fake().products.back().type, CUDA_R_16BF);
  EXPECT_EQ(Fake().products.back().d_type, CUDA_R_32F);
}

TEST_F(Gemms, AddPartialSumsInFloat32) {
  Try<float, float>({10, 7, 9});
  EXPECT_EQ(Fake().products.back().reduction_schemes, uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK});
  Try<BFloat16, BFloat16>({10, 7, 9});
  EXPECT_EQ(Fake().products.back().reduction_schemes,
            uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  UseDeterministicGemms(true);
  Try<float, float>({10, 7, 9});
  EXPECT_EQ(Fake().products.back().reduction_schemes,
            uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
}

TEST_F(Gemms, TakeTheFastestAlgorithmWhenTuned) {
  Fake().milliseconds = {5, 4, 3, 1, 2};
  Fake().failing = {3};
  TuneGemms(true);
  for (const bool accumulate : {false, true}) {
    Try<BFloat16, float>({12, 7, 9, false, false, accumulate});  // timing leaves C alone
    EXPECT_EQ(Fake().requested, 16);
    EXPECT_EQ(Fake().products.back().algorithm, 4);
  }
  const size_t runs = Fake().products.size();
  Try<BFloat16, float>({12, 7, 9});
  EXPECT_EQ(Fake().products.size(), runs + 1);
  EXPECT_EQ(Fake().products.back().algorithm, 4);
  // Without being asked, the first; what was tuned stays.
  TuneGemms(false);
  Try<BFloat16, float>({13, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 0);
  Try<BFloat16, float>({12, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 4);
  // And is tuned when asked.
  TuneGemms(true);
  Try<BFloat16, float>({13, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 4);
  // Not where every run must take the same.
  UseDeterministicGemms(true);
  Try<BFloat16, float>({12, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 0);
  EXPECT_EQ(Fake().requested, 1);
}

TEST_F(Gemms, SumRowsOfAAsIsFasterWhenTuned) {
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  Fake().bias_gradient_milliseconds = 3;  // in the epilogue
  Fake().column_sums_milliseconds = 4;
  Try<BFloat16, float>(WithSums(12, 8, 9));
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  Fake().column_sums_milliseconds = 2;
  Try<BFloat16, float>(WithSums(12, 8, 10));
  EXPECT_FALSE(Fake().products.back().bias_gradient);
  // Each is known now.
  const int sums = Fake().column_sums;
  const size_t products = Fake().products.size();
  Try<BFloat16, float>(WithSums(12, 8, 9));
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  Try<BFloat16, float>(WithSums(12, 8, 10));
  EXPECT_FALSE(Fake().products.back().bias_gradient);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  EXPECT_EQ(Fake().column_sums, sums + 1);
  EXPECT_EQ(Fake().products.size(), products + 2);
}

// What a fresh process does: tunes, and finds which algorithm. Exits with 0 if it is as expected.
void TuneAndExit(int heuristics, int checks, bool capturing = false) {
  TuneGemms(true);
  Fake().milliseconds = {5, 4, 3};
  Fake().capturing = capturing;
  Try<BFloat16, BFloat16>({12, 8, 11});
  const int plain = Fake().products.back().algorithm;
  Fake().bias_gradient_milliseconds = 9;  // so much that sums are faster apart
  Try<BFloat16, float>(WithSums(12, 8, 11));
  const auto& last = Fake().products.back();
  const auto ok = [](bool is, const char* what) {
    if (!is) std::fprintf(stderr, "%s\n", what);
    return is;
  };
  const bool all =
      static_cast<int>(ok(Fake().mistakes.empty() && !testing::Test::HasFailure(), "mistakes")) &
      static_cast<int>(ok(plain == 2 && last.algorithm == 2, "algorithm")) &
      static_cast<int>(ok(!last.bias_gradient && Fake().column_sums > 0, "epilogue")) &
      static_cast<int>(ok(Fake().heuristics == heuristics, "heuristics")) &
      static_cast<int>(ok(Fake().checks == checks, "checks"));
  std::exit(all ? 0 : 1);
}

// Each EXPECT_EXIT runs in a process of its own, from the start of the test.
TEST(GemmTuningOfProcesses, IsDoneOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string folder = testing::TempDir() + "gemm_tuning_of_processes";
  const std::string path = folder + "/tuning.json";
  setenv("LATHE_TUNE_CACHE", path.c_str(), 1);
  if (!testing::internal::InDeathTestChild()) std::filesystem::remove_all(folder);
  EXPECT_EXIT(TuneAndExit(3, 0), testing::ExitedWithCode(0), "");
  const std::string system = "cuBLASLt 130100, Fake GPU, 7 multiprocessors";
  if (!testing::internal::InDeathTestChild()) {
    EXPECT_NE(ReadFile(path).find(system), std::string::npos);
  }
  EXPECT_EXIT(TuneAndExit(0, 2), testing::ExitedWithCode(0), "");
  // Needing nothing of the device, what is known is found while work is recorded, too.
  EXPECT_EXIT(TuneAndExit(0, 2, true), testing::ExitedWithCode(0), "");
  // What the library refuses is tuned again.
  EXPECT_EXIT((Fake().checks_fail = true, TuneAndExit(2, 2)), testing::ExitedWithCode(0), "");
  setenv("LATHE_TUNE_CACHE", "", 1);
}

TEST_F(Gemms, AreNotTunedWhileAStepIsRecorded) {
  Fake().milliseconds = {5, 4};
  TuneGemms(true);
  Fake().capturing = true;
  Try<float, float>({14, 7, 9});
  Try<float, float>({14, 7, 9});
  EXPECT_EQ(Fake().products.size(), 2u);
  EXPECT_EQ(Fake().heuristics, 1);
  EXPECT_EQ(Fake().products.back().algorithm, 0);
  Fake().capturing = false;
  Try<float, float>({14, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 1);
}

TEST_F(Gemms, TakeTheFirstWhereTuningHasNoMemory) {
  Try<float, float>({1, 1, 1});  // the workspace is there
  Fake().milliseconds = {5, 4};
  DevicePool().ReleaseFreeSegments();
  Fake().free_memory = 0;
  TuneGemms(true);
  Try<float, float>({1500, 1500, 1});
  EXPECT_EQ(Fake().products.back().algorithm, 0);
}

TEST_F(Gemms, FailWithTheirShapes) {
  const auto why = [](const Case& t) -> std::string {
    try {
      Try<BFloat16, float>(t);
    } catch (const Error& e) {
      return e.message() + "|" + e.hint();
    }
    return "";
  };
  Fake().failing = {0};
  EXPECT_EQ(why({15, 7, 9}),
            "[cuda] cublasLtMatmul: a fake error for (M, N, K) = (15, 7, 9), bfloat16 to float32|");
  Fake().heuristic_fails = true;
  EXPECT_EQ(why({17, 7, 9}),
            "[cuda] cuBLASLt has no algorithm for (M, N, K) = (17, 7, 9), bfloat16 to float32: a "
            "fake error|");
  Fake().capturing = true;
  EXPECT_NE(why({17, 7, 9}).find("|run a step of these shapes"), std::string::npos);
  // And go on.
  Fake().heuristic_fails = Fake().capturing = false;
  Fake().failing = {};
  EXPECT_EQ(why({17, 7, 9}), "");
}

TEST_F(Gemms, PassNaNOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Matrix<float> a(4, 0, 1), b(4, 0, 2), c(4, 0, 3);
  c.data[0] = nan;
  GemmArgs args = {false, false, 2,      2, 2,       a.data,      2,          b.data,
                   2,     0,     c.data, 2, nullptr, DType::kF32, DType::kF32};
  DeviceKernels<GemmKernels>().product(args);
  EXPECT_FALSE(std::isnan(c.data[0])) << "C isn't read where beta is 0";
  a.data[0] = nan;
  DeviceKernels<GemmKernels>().product(args);
  EXPECT_TRUE(std::isnan(c.data[0]));
}

TEST_F(Gemms, KeepAtMostSoManyPlans) {
  constexpr int kMost = 1 << 14;
  const Matrix<float> a(1, 0, 1), b(1, 0, 2), c(1, 0, 3);
  for (int64_t ld = 1; ld <= kMost + 1; ++ld) {  // strides that don't matter
    DeviceKernels<GemmKernels>().product({false, false, 1, 1, 1, a.data, ld, b.data, 1, 0, c.data,
                                          1, nullptr, DType::kF32, DType::kF32});
  }
  EXPECT_GE(Fake().heuristics, kMost);
  // A plan has an operation and three layouts. Those of other tests count from 0, too.
  EXPECT_LE(Fake().live, 4 * kMost);
}

TEST_F(Gemms, ComeFromAnyThread) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        Try<BFloat16, BFloat16>({1 + (i * 5 + t) % 7, 6, 4, false, false, false, true});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lathe::cuda
