#include "lathe/core/gemm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <tuple>
#include <vector>

namespace lathe {
namespace {

// Small integers: bfloat16 has them exactly, and float32 their products' sums.
std::vector<BFloat16> Integers(int64_t n, int64_t seed) {
  std::vector<BFloat16> x;
  for (int64_t i = 0; i < n; ++i) {
    x.push_back(BFloat16(static_cast<float>((i * 7919 + seed) % 1013 % 9 - 4)));
  }
  return x;
}

// A^T B of A (K, M) and B (K, N), in rows that are 32 elements longer than what is multiplied.
class WeightGradientTest : public testing::TestWithParam<std::tuple<int64_t, int64_t, float>> {};

TEST_P(WeightGradientTest, IsTheSumOverRows) {
  const auto [M, N, beta] = GetParam();
  const int64_t K = 24, lda = M + 32, ldb = N + 32, ldc = N + 32;
  const std::vector<BFloat16> a = Integers(K * lda, 1), b = Integers(K * ldb, 2);
  std::vector<float> c(static_cast<size_t>(M * ldc));
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i % 17);
  std::vector<float> expected = c;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      float sum = beta * c[static_cast<size_t>(m * ldc + n)];
      for (int64_t k = 0; k < K; ++k) {
        sum += static_cast<float>(a[static_cast<size_t>(k * lda + m)]) *
               static_cast<float>(b[static_cast<size_t>(k * ldb + n)]);
      }
      expected[static_cast<size_t>(m * ldc + n)] = sum;
    }
  }
  Gemm(true, false, M, N, K, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
  EXPECT_TRUE(c == expected);  // what lies between the rows, too
}

// Long in one way or the other, which is done in halves, and neither; lengths with and without
// remainders.
INSTANTIATE_TEST_SUITE_P(Shapes, WeightGradientTest,
                         testing::Combine(testing::Values(256, 300, 768),
                                          testing::Values(256, 300, 1536),
                                          testing::Values(0.0f, 1.0f)));
INSTANTIATE_TEST_SUITE_P(Tall, WeightGradientTest,
                         testing::Combine(testing::Values(1536), testing::Values(256, 384),
                                          testing::Values(0.0f, 1.0f)));

// Of small integers; with N up to K several threads use another product than with more.
TEST(GemmTest, DenseLayersOfFloatsAddTheirBias) {
  for (const auto& [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{37, 96, 64},
                                {37, 64, 64},
                                {36, 48, 200},
                                {1, 2, 64},
                                {5, 1, 64},
                                {5, 64, 0}}) {
    std::vector<float> x, w, bias;
    for (int64_t i = 0; i < M * K; ++i) x.push_back(static_cast<float>(i * 7919 % 1013 % 9 - 4));
    for (int64_t i = 0; i < N * K; ++i) w.push_back(static_cast<float>(i * 104729 % 997 % 7 - 3));
    for (int64_t i = 0; i < N; ++i) bias.push_back(static_cast<float>(i % 5));
    for (const float* added :
         {static_cast<const float*>(bias.data()), static_cast<const float*>(nullptr)}) {
      std::vector<float> c(static_cast<size_t>(M * N), NAN), expected;
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < N; ++n) {
          float sum = added == nullptr ? 0 : added[n];
          for (int64_t k = 0; k < K; ++k) {
            sum += x[static_cast<size_t>(m * K + k)] * w[static_cast<size_t>(n * K + k)];
          }
          expected.push_back(sum);
        }
      }
      Gemm(false, true, M, N, K, x.data(), K, w.data(), K, 0, c.data(), N, added);
      EXPECT_TRUE(c == expected) << M << " " << N << " " << K;
    }
  }
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Batches of texts of all lengths: what is kept of each number of rows has an end, and a product
// that was forgotten and is prepared again is right.
TEST(GemmTest, MemoryOfPreparedProductsHasAnEnd) {
  constexpr int64_t kN = 32, kK = 64, kShapes = 4000, kOften = 16;
  const std::vector<BFloat16> x = Integers(kShapes * kK, 1), w = Integers(kN * kK, 2);
  std::vector<BFloat16> y(static_cast<size_t>(kShapes * kN)), often(y), expected;
  for (int64_t m = 0; m < kShapes; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < kK; ++k) {
        sum += static_cast<float>(x[static_cast<size_t>(m * kK + k)]) *
               static_cast<float>(w[static_cast<size_t>(n * kK + k)]);
      }
      expected.push_back(BFloat16(sum));
    }
  }
  const auto multiply = [&](int64_t rows, BFloat16* to) {
    Gemm(false, true, rows, kN, kK, x.data(), kK, w.data(), kK, 0, to, kN);
  };
  double before = 0;
  for (int64_t rows = 1; rows <= kShapes; ++rows) {
    multiply(rows, y.data());
    if (rows % 100 == 0) multiply(kOften, often.data());
    if (rows == 1100) before = ResidentBytes();
  }
  EXPECT_LT(ResidentBytes() - before, 100e6);
  const auto same = [&](const std::vector<BFloat16>& c, int64_t rows) {
    for (size_t i = 0; i < static_cast<size_t>(rows * kN); ++i) {
      if (static_cast<float>(c[i]) != static_cast<float>(expected[i])) return false;
    }
    return true;
  };
  EXPECT_TRUE(same(y, kShapes));
  EXPECT_TRUE(same(often, kOften));
  multiply(3, often.data());
  EXPECT_TRUE(same(often, 3));
}

TEST(FullSpeedRowsTest, AreAtLeastTheRowsAndFew) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    int64_t last = 0;
    for (int64_t rows = 0; rows <= 4096; ++rows) {
      const int64_t full = FullSpeedRows(rows, dtype);
      ASSERT_GE(full, rows);
      ASSERT_LT(full - rows, 64);
      ASSERT_GE(full, last);
      ASSERT_EQ(FullSpeedRows(full, dtype), full);
      ASSERT_EQ(full % 4, 0);
      last = full;
    }
  }
  EXPECT_EQ(FullSpeedRows(37, DType::kF64), 37);
}

}  // namespace
}  // namespace lathe
