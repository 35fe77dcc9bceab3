#include "lathe/core/cuda/gemm/gemm_problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <unordered_set>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

GemmArgs Args(int64_t M, int64_t N, int64_t K) {
  return {.transpose_a = false,
          .transpose_b = false,
          .M = M,
          .N = N,
          .K = K,
          .a = nullptr,
          .lda = K,
          .b = nullptr,
          .ldb = N,
          .beta = 0,
          .c = nullptr,
          .ldc = N,
          .bias = nullptr,
          .type = DType::kF32,
          .c_type = DType::kF32};
}

// Returns the element (row, column) of op(X), where X is column-major.
float At(const std::vector<float>& x, bool transpose, int64_t ld, int64_t row, int64_t column) {
  return x[static_cast<size_t>(transpose ? row * ld + column : column * ld + row)];
}

TEST(GemmProblem, IsTheSameProductColumnMajor) {
  for (int transposes = 0; transposes < 4; ++transposes) {
    for (const auto& [M, N, K] : {std::tuple{2, 3, 4}, {1, 5, 3}, {4, 1, 2}, {3, 2, 1}}) {
      GemmArgs args = Args(M, N, K);
      args.transpose_a = (transposes & 1) != 0;
      args.transpose_b = (transposes & 2) != 0;
      args.lda = (args.transpose_a ? M : K) + 1;
      args.ldb = (args.transpose_b ? K : N) + 2;
      args.ldc = N + 3;
      std::vector<float> a(100), b(100);
      for (size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(i);
        b[i] = static_cast<float>(i * i % 17);
      }
      args.a = a.data();
      args.b = b.data();
      const GemmProblem p = ToColumnMajor(args, {});
      EXPECT_GE(p.lda, p.a_rows());
      EXPECT_GE(p.ldb, p.b_rows());
      for (int64_t r = 0; r < M; ++r) {
        for (int64_t c = 0; c < N; ++c) {
          float expected = 0, sum = 0;
          for (int64_t i = 0; i < K; ++i) {
            expected +=
                a[static_cast<size_t>(args.transpose_a ? i * args.lda + r : r * args.lda + i)] *
                b[static_cast<size_t>(args.transpose_b ? c * args.ldb + i : i * args.ldb + c)];
          }
          // Row r, column c of C is row c, column r of D, and A is the caller's B.
          for (int64_t i = 0; i < p.k; ++i) {
            sum += At(b, p.transpose_a, p.lda, c, i) * At(a, p.transpose_b, p.ldb, i, r);
          }
          EXPECT_EQ(sum, expected);
        }
      }
      EXPECT_EQ(p.m, N);
      EXPECT_EQ(p.n, M);
      EXPECT_EQ(p.k, K);
      EXPECT_EQ(p.ldd, args.ldc);
    }
  }
}

TEST(GemmProblem, SingleRowsHaveAnyStride) {
  GemmArgs args = Args(1, 6, 4);
  args.lda = args.ldc = 0;
  const GemmProblem p = ToColumnMajor(args, {});
  EXPECT_EQ(p.ldb, 4);
  EXPECT_EQ(p.ldd, 6);
  args.M = 2;
  EXPECT_THROW(ToColumnMajor(args, {}), Error);
}

TEST(GemmProblem, RefusesWhatCannotBe) {
  const auto refuses = [](auto change) {
    GemmArgs args = Args(2, 3, 4);
    change(args);
    EXPECT_THROW(ToColumnMajor(args, {}), Error);
  };
  float bias[3];
  refuses([](GemmArgs& g) { g.M = -1; });
  refuses([](GemmArgs& g) { g.ldb = 2; });
  refuses([](GemmArgs& g) { g.ldc = 2; });
  refuses([](GemmArgs& g) { g.beta = 0.5f; });
  refuses([](GemmArgs& g) { g.type = g.c_type = DType::kF64; });
  refuses([](GemmArgs& g) { g.c_type = DType::kBF16; });
  refuses([&](GemmArgs& g) { g.bias = bias, g.beta = 1; });
  refuses([&](GemmArgs& g) { g.a_sums = bias; });
  refuses([](GemmArgs& g) { g.batch = 0; });
  refuses([](GemmArgs& g) { g.batch = 2, g.c_stride = 5; });
  refuses([](GemmArgs& g) { g.batch = 2, g.c_stride = 3, g.ldc = 5; });
  refuses([](GemmArgs& g) { g.batch = 2, g.c_stride = 2, g.ldc = 6; });
  refuses([](GemmArgs& g) { g.batch = 2, g.c_stride = 6, g.a_stride = -8; });
  refuses([&](GemmArgs& g) { g.bias = g.a_sums = bias, g.transpose_a = true; });
  refuses([&](GemmArgs& g) {
    g.a_sums = bias, g.transpose_a = true, g.type = g.c_type = DType::kBF16;
  });
}

// The results of a batch may lie side by side, as those of a grouped layer do.
TEST(GemmProblem, TakesABatchSideBySide) {
  GemmArgs args = Args(2, 3, 4);
  args.batch = 3;
  args.c_stride = 3;
  args.ldc = 9;
  const GemmProblem p = ToColumnMajor(args, {});
  EXPECT_EQ(p.ldd, 9);
  EXPECT_EQ(p.batch, 3);
}

TEST(GemmProblem, AlignmentIsTheAddresss) {
  const auto of = [](uintptr_t address) { return AlignmentOf(reinterpret_cast<void*>(address)); };
  EXPECT_EQ(of(0), 256);
  EXPECT_EQ(of(1), 1);
  EXPECT_EQ(of(2), 2);
  EXPECT_EQ(of(0x1234), 4);
  EXPECT_EQ(of(0x7f0000001010), 16);
  EXPECT_EQ(of(0x100), 256);
  EXPECT_EQ(of(0x10000), 256);
}

// Two products share a plan unless they differ in a field of the problem.
TEST(GemmProblem, IsAKey) {
  const GemmArgs plain = Args(32, 64, 96);
  std::unordered_set<GemmProblem, GemmProblemHash> plans;
  const auto add = [&](auto change, GemmOptions options = {}) {
    GemmArgs args = plain;
    change(args);
    return plans.insert(ToColumnMajor(args, options)).second;
  };
  float bias[64];
  const auto same = [](GemmArgs&) {};
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  EXPECT_TRUE(add(same));
  EXPECT_FALSE(add(same));
  EXPECT_FALSE(add([&](GemmArgs& g) { g.a = at(0x100); }));  // as aligned as the others
  EXPECT_FALSE(add([&](GemmArgs& g) { g.a = at(0x300); }));
  EXPECT_TRUE(add([&](GemmArgs& g) { g.a = at(0x110); }));
  EXPECT_TRUE(add([&](GemmArgs& g) { g.b = at(0x110); }));
  EXPECT_TRUE(add([&](GemmArgs& g) { g.c = at(0x110); }));
  EXPECT_FALSE(add([&](GemmArgs& g) { g.c = at(0x130); }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.M = 31; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.N = 63; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.K = 95; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.transpose_a = true; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.transpose_b = true, g.ldb = 96; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.lda = 97; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.ldb = 97; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.ldc = 97; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.beta = 1; }));
  EXPECT_TRUE(add([&](GemmArgs& g) { g.bias = bias; }));
  EXPECT_FALSE(add([&](GemmArgs& g) { g.bias = bias + 1; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.type = g.c_type = DType::kBF16; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.type = DType::kBF16; }));
  EXPECT_TRUE(add([](GemmArgs& g) { g.type = DType::kF16; }));
  EXPECT_TRUE(add([&](GemmArgs& g) { g.transpose_a = true, g.a_sums = bias; }));
  const auto batch = [](GemmArgs& g) { g.batch = 2, g.c_stride = 32 * 64, g.a_stride = 256; };
  EXPECT_TRUE(add(batch));
  EXPECT_FALSE(add([&](GemmArgs& g) { batch(g), g.a_stride = 512; }));
  EXPECT_TRUE(add([&](GemmArgs& g) { batch(g), g.a_stride = 4; })) << "less aligned";
  EXPECT_TRUE(add(same, {.allow_tf32 = true}));
  EXPECT_FALSE(add(same, {.tune = true}));
  EXPECT_TRUE(add(same, {.deterministic = true}));
  EXPECT_FALSE(add([](GemmArgs& g) { g.type = DType::kF16; }, {.allow_tf32 = true}));
}

TEST(GemmProblem, IsDescribedInTheCallersTerms) {
  GemmArgs args = Args(128, 768, 3072);
  EXPECT_EQ(Describe(ToColumnMajor(args, {})), "(M, N, K) = (128, 768, 3072), float32");
  args.transpose_b = true;
  args.ldb = 3072;
  args.type = DType::kBF16;
  args.beta = 1;
  EXPECT_EQ(Describe(ToColumnMajor(args, {})),
            "(M, N, K) = (128, 768, 3072), bfloat16 to float32, transposed B, added to C");
}

TEST(GemmProblem, AnEpilogueIsPartOfTheDescription) {
  GemmArgs args = Args(8, 4, 2);
  float sums[8];
  args.transpose_a = true;
  args.lda = 8;
  args.a_sums = sums;
  EXPECT_EQ(Describe(ToColumnMajor(args, {})),
            "(M, N, K) = (8, 4, 2), float32, transposed A, with the sums of A's rows");
  args.a_sums = nullptr;
  args.bias = sums;
  EXPECT_EQ(Describe(ToColumnMajor(args, {})),
            "(M, N, K) = (8, 4, 2), float32, transposed A, with a bias");
}

TEST(GemmProblem, PartialSumsStayFloat32) {
  GemmArgs args = Args(2, 3, 4);
  EXPECT_EQ(AllowedPartialSums(ToColumnMajor(args, {})), PartialSums::kAny);
  EXPECT_EQ(AllowedPartialSums(ToColumnMajor(args, {.deterministic = true})),
            PartialSums::kInScratch);
  args.type = args.c_type = DType::kBF16;
  EXPECT_EQ(AllowedPartialSums(ToColumnMajor(args, {})), PartialSums::kInScratch);
}

TEST(GemmProblem, TheFastestIsTakenAndTheFirstOfEquals) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto pick = [](std::vector<float> times) { return PickFastest(times); };
  EXPECT_EQ(pick({}), -1);
  EXPECT_EQ(pick({nan, 0, -1, inf}), -1);
  EXPECT_EQ(pick({3, 1, 2}), 1);
  EXPECT_EQ(pick({2, 2, 2}), 0);
  EXPECT_EQ(pick({2, 1.97f, 1.5f, 1.49f}), 2);
  EXPECT_EQ(pick({nan, 5, 4, nan, 4}), 2);
}

TEST(GemmOptions, AreTheProcesss) {
  const GemmOptions before = GetGemmOptions();
  AllowTf32(true);
  TuneGemms(true);
  UseDeterministicGemms(true);
  const GemmOptions set = GetGemmOptions();
  EXPECT_TRUE(set.allow_tf32 && set.tune && set.deterministic);
  AllowTf32(false);
  EXPECT_FALSE(GetGemmOptions().allow_tf32);
  EXPECT_TRUE(GetGemmOptions().tune);
  SetGemmOptions(before);
}

}  // namespace
}  // namespace lathe::cuda
