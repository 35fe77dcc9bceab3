#include "lathe/core/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>
#include <tuple>
#include <vector>

namespace lathe {
namespace {

// Returns small integers: exact in bfloat16, and the sums of their products are exact in float32.
std::vector<BFloat16> Integers(int64_t n, int64_t seed) {
  std::vector<BFloat16> x;
  for (int64_t i = 0; i < n; ++i) {
    x.push_back(BFloat16(static_cast<float>((i * 7919 + seed) % 1013 % 9 - 4)));
  }
  return x;
}

// Tests A^T B for A: (K, M) and B: (K, N). The rows of all matrices are 32 elements longer than the
// part that is multiplied.
class WeightGradientTest : public testing::TestWithParam<std::tuple<int64_t, int64_t, float>> {};

// Sets the number of threads for the products of one test. One, two and more threads divide the
// work in different ways.
class Threads {
 public:
  explicit Threads(int n) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  const int before_ = omp_get_max_threads();
};

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
  const std::vector<float> before = c;
  for (const int n : {1, 2, 3}) {
    const Threads threads(n);
    c = before;
    Gemm({.a = true}, M, N, K, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
    EXPECT_TRUE(c == expected) << n;  // also checks the elements between the rows
  }
}

// Matrices that are much longer one way, which are split in two, and others. Lengths with and
// without remainders.
INSTANTIATE_TEST_SUITE_P(Shapes, WeightGradientTest,
                         testing::Combine(testing::Values(256, 300, 768),
                                          testing::Values(256, 300, 1536),
                                          testing::Values(0.0f, 1.0f)));
INSTANTIATE_TEST_SUITE_P(Tall, WeightGradientTest,
                         testing::Combine(testing::Values(1536), testing::Values(256, 384),
                                          testing::Values(0.0f, 1.0f)));

// Values are small integers. With N <= K, and with N far above M, several threads use other kinds
// of products.
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
      for (const int n : {1, 2, 3}) {
        const Threads threads(n);
        std::fill(c.begin(), c.end(), NAN);
        Gemm({.b = true}, M, N, K, x.data(), K, w.data(), K, 0, c.data(), N, added);
        EXPECT_TRUE(c == expected) << M << " " << N << " " << K << " threads " << n;
      }
    }
  }
}

std::vector<float> Wide(const std::vector<BFloat16>& x) {
  std::vector<float> wide;
  for (const BFloat16 value : x) wide.push_back(value);
  return wide;
}

struct HalvesCase {
  bool transpose_a, transpose_b;
  int64_t M, N, K;
  bool bias, accumulate;
};

// Returns C of a case by definition, with row stride `ldc`. Rows of A and B are 8 elements longer
// than needed.
std::vector<float> Expected(const HalvesCase& p, const std::vector<float>& a,
                            const std::vector<float>& b, const std::vector<float>& c, int64_t ldc,
                            const float* bias) {
  const int64_t lda = (p.transpose_a ? p.M : p.K) + 8, ldb = (p.transpose_b ? p.K : p.N) + 8;
  std::vector<float> result = c;
  for (int64_t m = 0; m < p.M; ++m) {
    std::vector<float> row(static_cast<size_t>(p.N));
    for (int64_t k = 0; k < p.K; ++k) {
      const float x = a[static_cast<size_t>(p.transpose_a ? k * lda + m : m * lda + k)];
      for (int64_t n = 0; n < p.N; ++n)
        row[static_cast<size_t>(n)] +=
            x * b[static_cast<size_t>(p.transpose_b ? n * ldb + k : k * ldb + n)];
    }
    for (int64_t n = 0; n < p.N; ++n) {
      float& to = result[static_cast<size_t>(m * ldc + n)];
      to = row[static_cast<size_t>(n)] + (p.accumulate ? to : 0) + (bias == nullptr ? 0 : bias[n]);
    }
  }
  return result;
}

// Two threads take halves of rows or of columns, also of odd numbers, or divide strips and panels.
// The sums are the same as with any number of threads.
TEST(GemmTest, AnyNumberOfThreadsGivesTheSameSums) {
  for (const HalvesCase& p : {HalvesCase{false, true, 40, 301, 64, true, false},
                              {false, true, 301, 64, 40, true, false},
                              {false, true, 270, 290, 24, false, false},
                              {false, false, 301, 290, 31, false, true},
                              {false, false, 300, 40, 31, false, false},
                              {false, false, 24, 1001, 2100, false, false},
                              {true, false, 301, 290, 24, false, true},
                              // Several blocks of each kind that packed products have: of depth
                              // and rows, of columns if results are bfloat16, and of columns.
                              {true, false, 450, 130, 300, false, true},
                              {false, true, 130, 1100, 300, true, false},
                              {false, true, 30, 3100, 300, true, false},
                              {false, false, 30, 3100, 300, false, true},
                              {true, false, 40, 301, 24, false, false}}) {
    const int64_t lda = (p.transpose_a ? p.M : p.K) + 8, ldb = (p.transpose_b ? p.K : p.N) + 8;
    const int64_t ldc = p.N + 8;
    const std::vector<BFloat16> a = Integers((p.transpose_a ? p.K : p.M) * lda, 1);
    const std::vector<BFloat16> b = Integers((p.transpose_b ? p.N : p.K) * ldb, 2);
    const std::vector<float> wide_a = Wide(a), wide_b = Wide(b);
    std::vector<float> bias, before;
    for (int64_t i = 0; i < p.N; ++i) bias.push_back(static_cast<float>(i % 5));
    for (int64_t i = 0; i < p.M * ldc; ++i) before.push_back(static_cast<float>(i % 3));
    const float* const added = p.bias ? bias.data() : nullptr;
    const std::vector<float> expected = Expected(p, wide_a, wide_b, before, ldc, added);
    const float beta = p.accumulate ? 1 : 0;
    for (const int n : {2, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << p.M << " " << p.N << " " << p.K << ", threads " << n);
      const Threads threads(n);
      std::vector<float> c = before;
      Gemm({.a = p.transpose_a, .b = p.transpose_b}, p.M, p.N, p.K, wide_a.data(), lda,
           wide_b.data(), ldb, beta, c.data(), ldc, added);
      EXPECT_TRUE(c == expected);
      c = before;
      Gemm({.a = p.transpose_a, .b = p.transpose_b}, p.M, p.N, p.K, a.data(), lda, b.data(), ldb,
           beta, c.data(), ldc, added);
      EXPECT_TRUE(c == expected);
      std::vector<BFloat16> narrow;
      for (const float value : before) narrow.push_back(BFloat16(value));
      Gemm({.a = p.transpose_a, .b = p.transpose_b}, p.M, p.N, p.K, a.data(), lda, b.data(), ldb,
           beta, narrow.data(), ldc, added);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(static_cast<float>(narrow[i]), static_cast<float>(BFloat16(expected[i])));
    }
  }
}

// Several threads of a program may run the same prepared products at once.
TEST(GemmTest, SeveralCallersAtOnce) {
  constexpr int64_t kM = 300, kN = 290, kK = 96;
  const std::vector<BFloat16> b = Integers(kN * kK, 2);
  std::vector<std::thread> callers;
  std::vector<int> wrong(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      const std::vector<BFloat16> a = Integers(kM * kK, caller);
      for (int round = 0; round < 20; ++round) {
        std::vector<float> c(kM * kN);
        Gemm({.b = true}, kM, kN, kK, a.data(), kK, b.data(), kK, 0, c.data(), kN);
        for (int64_t m = 0; m < kM; m += 13) {
          for (int64_t n = 0; n < kN; n += 7) {
            float sum = 0;
            for (int64_t k = 0; k < kK; ++k)
              sum += static_cast<float>(a[static_cast<size_t>(m * kK + k)]) *
                     static_cast<float>(b[static_cast<size_t>(n * kK + k)]);
            wrong[static_cast<size_t>(caller)] += c[static_cast<size_t>(m * kN + n)] != sum;
          }
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Batches with texts of all lengths bring many numbers of rows. The memory kept for them is
// limited, and a product that was dropped and is prepared again is right.
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
    Gemm({.b = true}, rows, kN, kK, x.data(), kK, w.data(), kK, 0, to, kN);
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
