#include "lathe/core/gemm.h"

#include <gtest/gtest.h>

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

TEST(FullSpeedRowsTest, AreAtLeastTheRowsAndFew) {
  int64_t last = 0;
  for (int64_t rows = 0; rows <= 4096; ++rows) {
    const int64_t full = FullSpeedRows(rows);
    ASSERT_GE(full, rows);
    ASSERT_LT(full - rows, 64);
    ASSERT_GE(full, last);
    ASSERT_EQ(FullSpeedRows(full), full);
    if (HasFastBFloat16()) {
      ASSERT_EQ(full % 16, 0);
    }
    last = full;
  }
}

}  // namespace
}  // namespace lathe
