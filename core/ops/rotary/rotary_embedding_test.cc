#include "lathe/core/ops/rotary/rotary_embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Tensor Positions(const std::vector<int32_t>& positions) { return Tensor::FromVector(positions); }

// A table of arbitrary numbers, as RoFormer's checkpoints may have: a turn is then no rotation.
Tensor AnyTable(int64_t rows, int64_t d) {
  std::vector<float> values(static_cast<size_t>(rows * d));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(1.3f * static_cast<float>(i)) + 0.2f;
  }
  return Tensor::FromVector(values, {rows, d});
}

OpCase CaseOf(const std::string& name, const Tensor& table, const Tensor& positions,
              const RotaryOptions& options, std::vector<std::vector<Shape>> shapes) {
  return {.name = name,
          .op =
              [=](const Tensors& x) {
                const Device device = x[0].device();
                return RotaryEmbedding(x[0], table.To(device), positions.To(device), options);
              },
          .composed =
              [=](const Tensors& x) {
                return RotaryEmbeddingComposed(x[0], table, positions, options);
              },
          .shapes = std::move(shapes),
          .activations = {0}};
}

// Heads of 2 to 150 columns: fewer than a register, whole ones, and a rest.
TEST(RotaryEmbedding, Op) {
  const Tensor positions = Positions({3, 0, 1, 7, 2});
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    for (const int64_t d : {2, 6, 32, 64, 150}) {
      const Tensor table = RotaryTable(8, RotaryFrequencies(d, 100));
      CheckOp(CaseOf("rotary", table, positions, {.num_heads = 3, .pairs = pairs},
                     {{{5, 3 * d}}, {{10, 3 * d}}, {{0, 3 * d}}}));
    }
    CheckOp(CaseOf("rotary_any_table", AnyTable(8, 10), positions, {.num_heads = 1, .pairs = pairs},
                   {{{5, 10}}}));
    CheckOp(CaseOf("rotary_rows", AnyTable(8, 12), positions,
                   {.num_heads = 2, .pairs = pairs, .begin = 4, .end = 14},
                   {{{15, 24}}, {{14, 24}}}));
    CheckOp(CaseOf("rotary_no_rows", AnyTable(8, 12), positions,
                   {.num_heads = 2, .pairs = pairs, .begin = 3, .end = 3}, {{{5, 24}}}));
  }
}

// More elements than one thread takes, and than a grid has threads.
TEST(RotaryEmbedding, ManyRows) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kRows = 1500, kHeads = 3, kDim = 32;
  std::vector<int32_t> positions;
  std::vector<float> numbers;
  for (int32_t r = 0; r < kRows; ++r) positions.push_back(r * 37 % 600);
  for (int64_t i = 0; i < kRows * kHeads * kDim; ++i) numbers.push_back(std::sin(float(i)));
  const Tensor x = Tensor::FromVector(numbers, {kRows, kHeads * kDim});
  const Tensor table = RotaryTable(600, RotaryFrequencies(kDim, 10000));
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    const RotaryOptions options = {.num_heads = kHeads, .pairs = pairs};
    const Device device = CheckedDevice();
    const std::vector<float> y =
        RotaryEmbedding(x.To(device), table.To(device), Positions(positions).To(device), options)
            .ToVector<float>();
    const std::vector<float> expected =
        RotaryEmbeddingComposed(x, table, Positions(positions), options).ToVector<float>();
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-6) << i;
  }
}

// Turns at addresses that don't allow loads of 16 bytes are the same.
TEST(RotaryEmbedding, UnalignedOnDevices) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  constexpr int64_t kRows = 3, kColumns = 32;
  std::vector<float> numbers(kRows * kColumns + 1);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::cos(static_cast<float>(i));
  const Tensor table = RotaryTable(3, RotaryFrequencies(16, 10)).To(CheckedDevice());
  const Tensor positions = Positions({2, 0, 1}).To(CheckedDevice());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor all = Tensor::FromVector(numbers).To(dtype).To(CheckedDevice());
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
      const Tensor unaligned = all.Slice(1, kRows * kColumns + 1).Reshape({kRows, kColumns});
      const auto turned = [&](const Tensor& x) {
        return RotaryEmbedding(x, table, positions, {.num_heads = 2, .pairs = pairs})
            .To(DType::kF32)
            .ToVector<float>();
      };
      ExpectSameButForRounding(turned(unaligned), turned(unaligned.Clone()), dtype);
    }
  }
}

TEST(RotaryEmbedding, Frequencies) {
  const std::vector<float> frequencies = RotaryFrequencies(64, 160000);
  ASSERT_EQ(frequencies.size(), 32u);
  EXPECT_EQ(frequencies[0], 1);
  for (size_t i = 0; i < 32; ++i) {
    const double exact = std::pow(160000, -2.0 * static_cast<double>(i) / 64);
    EXPECT_NEAR(frequencies[i] / exact, 1, 4e-7) << i;
  }
  const Tensor table = RotaryTable(8192, frequencies);
  EXPECT_EQ(table.shape(), Shape({8192, 64}));
  for (const int64_t p : {0, 1, 40, 8191}) {
    for (const int64_t i : {0, 1, 31}) {
      const double angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      EXPECT_EQ(table.data<float>()[p * 64 + i], static_cast<float>(std::sin(angle)));
      EXPECT_EQ(table.data<float>()[p * 64 + 32 + i], static_cast<float>(std::cos(angle)));
    }
  }
}

// Products of a query and a key depend on the difference of their positions alone.
TEST(RotaryEmbedding, ProductsKnowDistances) {
  const Tensor q = Tensor::FromVector<float>({1, -2, 0.5, 3, 2, 1}, {1, 6});
  const Tensor k = Tensor::FromVector<float>({0.3f, 1, -1, 2, 0.1f, 4}, {1, 6});
  const Tensor table = RotaryTable(64, RotaryFrequencies(6, 50));
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    const auto product = [&](int32_t i, int32_t j) {
      const RotaryOptions options = {.pairs = pairs};
      return MatrixProduct(RotaryEmbedding(q, table, Positions({i}), options),
                           RotaryEmbedding(k, table, Positions({j}), options), {.b = true})
          .Item();
    };
    EXPECT_NEAR(product(5, 2), product(60, 57), 2e-5);
    EXPECT_NEAR(product(0, 9), product(40, 49), 2e-5);
    EXPECT_GT(std::fabs(product(5, 2) - product(5, 3)), 0.01);
    EXPECT_GT(std::fabs(product(5, 2) - product(2, 5)), 0.01);
  }
}

// What nothing else holds is turned where it lies. What others hold stays as it was.
TEST(RotaryEmbedding, TakesThePlaceOfWhatIsMovedIn) {
  const Tensor table = AnyTable(4, 4), positions = Positions({1, 2, 3});
  const Tensor leaf = Tensor::Full({3, 4}, 2).SetRequiresGrad(true);
  Tensor x = Scale(leaf, 1);
  const void* const place = x.raw_data();
  Tensor y = RotaryEmbedding(x, table, positions, {});
  EXPECT_NE(y.raw_data(), place);
  EXPECT_EQ(x.ToVector<float>(), std::vector<float>(12, 2));
  const std::vector<float> expected = y.ToVector<float>();
  const Tensor view = x.Detach();
  y = RotaryEmbedding(std::move(x), table, positions, {});
  EXPECT_NE(y.raw_data(), place);
  x = Scale(leaf, 1);
  const void* const own = x.raw_data();
  y = RotaryEmbedding(std::move(x), table, positions, {});
  EXPECT_EQ(y.raw_data(), own);
  EXPECT_EQ(y.ToVector<float>(), expected);
  Backward(y, Tensor::Full({3, 4}, 1));
  const Tensor other = Tensor::Full({3, 4}, 2).SetRequiresGrad(true);
  Backward(RotaryEmbedding(other, table, positions, {}), Tensor::Full({3, 4}, 1));
  EXPECT_EQ(leaf.grad().ToVector<float>(), other.grad().ToVector<float>());
  EXPECT_EQ(other.ToVector<float>(), std::vector<float>(12, 2));
}

TEST(RotaryEmbedding, PositionsOutsideTheTable) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    const std::vector<float> y =
        RotaryEmbedding(Tensor::Full({3, 2}, 1).To(device), AnyTable(4, 2).To(device),
                        Positions({4, 3, -1}).To(device), {.pairs = pairs})
            .ToVector<float>();
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 2 != 1) << i;
  }
}

TEST(RotaryEmbedding, Errors) {
  const Tensor x = Tensor::Zeros({4, 8}), table = AnyTable(3, 4);
  const auto error = [](const auto& call) {
    try {
      call();
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  const auto error_of = [&](const Tensor& input, const Tensor& numbers,
                            const std::vector<int32_t>& positions, const RotaryOptions& options) {
    return error([&] { RotaryEmbedding(input, numbers, Positions(positions), options); });
  };
  EXPECT_EQ(error_of(x, table, {0, 2}, {.num_heads = 2}), "");
  EXPECT_EQ(error_of(Tensor::Zeros({4}), table, {0}, {}),
            "[rotary_embedding] x must have shape [N, H] but has [4]");
  EXPECT_EQ(error_of(x, table, {0}, {.num_heads = 3}),
            "[rotary_embedding] the columns of x [4, 8] are not 3 heads of an even number of "
            "columns each");
  EXPECT_EQ(error_of(x, table, {0}, {.num_heads = 8}),
            "[rotary_embedding] the columns of x [4, 8] are not 8 heads of an even number of "
            "columns each");
  EXPECT_EQ(error_of(x, table, {0}, {.num_heads = 2, .begin = 3, .end = 5}),
            "[rotary_embedding] rows 3 to 5 don't exist in shape [4, 8]");
  EXPECT_EQ(error_of(x, table, {0}, {.num_heads = 4}),
            "[rotary_embedding] table must be float32 of shape [R, 2] but is float32 of shape "
            "[3, 4]");
  EXPECT_EQ(error_of(x, table, {0, 1, 2}, {.num_heads = 2}),
            "[rotary_embedding] 4 turned rows of x [4, 8] are no multiple of 3 positions");
  EXPECT_EQ(error_of(x, table, {0, 3}, {.num_heads = 2}),
            "[rotary_embedding] position 3 is outside the table of 3 rows");
  EXPECT_EQ(error_of(x, table, {-1, 0}, {.num_heads = 2}),
            "[rotary_embedding] position -1 is outside the table of 3 rows");
  EXPECT_EQ(error_of(x, table.Clone().SetRequiresGrad(true), {0}, {.num_heads = 2}),
            "[rotary_embedding] table must not require a gradient");
  EXPECT_EQ(error([] { RotaryFrequencies(7, 10); }),
            "[rotary_frequencies] head_dim must be positive and even but is 7");
  EXPECT_EQ(error([] { RotaryFrequencies(8, 0); }),
            "[rotary_frequencies] theta must be positive but is 0");
}

}  // namespace
}  // namespace lathe
