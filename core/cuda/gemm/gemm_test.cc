// Tests when and how gemm.cc calls cuBLASLt, with a fake library that computes on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/cuda/gemm/gemm_problem.h"
#include "lathe/core/cuda/gemm/gemm_testing.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/gemm_kernels.h"

namespace lathe::cuda {
namespace {

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

// Runs a batch of `batch` products like `t`, and compares it with the same products one by one.
// They share one A, unless `t` sums its rows. The Bs and the Cs lie apart from each other.
template <typename T, typename C>
void TryBatch(const Case& t, int64_t batch, int64_t gap = 8) {
  SCOPED_TRACE(testing::Message() << batch << " times " << t.M << " " << t.N << " " << t.K);
  const int64_t a_size = t.M * t.K, b_stride = t.N * t.K + gap, c_stride = t.M * t.N + 2 * gap;
  const int64_t bias_stride = std::max(t.M, t.N) + gap;
  const Matrix<T> a(a_size + gap * batch, t.shift, 1), b(b_stride * batch, t.shift, 2);
  const Matrix<C> c(c_stride * batch, t.shift, 3), expected(c_stride * batch, t.shift, 3);
  const Matrix<float> bias(bias_stride * batch, 0, 4), sums(bias_stride * batch, 0, 5);
  const Matrix<float> expected_sums(bias_stride * batch, 0, 5);
  GemmArgs args = ArgsOf(t, a.data, b.data, expected.data, bias.data, expected_sums.data);
  args.batch = batch;
  args.a_stride = t.sums ? gap : 0;
  args.b_stride = b_stride;
  args.c_stride = c_stride;
  args.bias_stride = bias_stride;
  for (int64_t i = 0; i < batch; ++i) DeviceKernels<GemmKernels>().product(ProductOfBatch(args, i));
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
  // The distances between matrices aren't part of the problem.
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
  EXPECT_NE(why({17, 7, 9}).find("|run one step with these shapes"), std::string::npos);
  // Later products still work.
  Fake().heuristic_fails = Fake().capturing = false;
  Fake().failing = {};
  EXPECT_EQ(why({17, 7, 9}), "");
}

TEST_F(Gemms, PassNaNOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Matrix<float> a(4, 0, 1), b(4, 0, 2), c(4, 0, 3);
  c.data[0] = nan;
  const GemmArgs args = ArgsOf({2, 2, 2}, a.data, b.data, c.data);
  DeviceKernels<GemmKernels>().product(args);
  EXPECT_FALSE(std::isnan(c.data[0])) << "C isn't read where beta is 0";
  a.data[0] = nan;
  DeviceKernels<GemmKernels>().product(args);
  EXPECT_TRUE(std::isnan(c.data[0]));
}

TEST_F(Gemms, KeepAtMostSoManyPlans) {
  constexpr int kMost = 1 << 14;
  const Matrix<float> a(1, 0, 1), b(1, 0, 2), c(1, 0, 3);
  GemmArgs args = ArgsOf({1, 1, 1}, a.data, b.data, c.data);
  for (args.lda = 1; args.lda <= kMost + 1; ++args.lda) {  // strides that don't matter
    DeviceKernels<GemmKernels>().product(args);
  }
  EXPECT_GE(Fake().heuristics, kMost);
  // A plan has an operation and three layouts. `live` may be lower, since it also counts down for
  // plans that earlier tests made.
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
