#include "lathe/nn/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "lathe/core/base/philox.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

struct Moments {
  double mean, std_dev, min, max;
};

Moments MomentsOf(const Init& init, int64_t n = 200000) {
  Tensor t = Tensor::Empty({n}, DType::kF64);
  Fill(t, init, 42, "moments");
  Moments m{0, 0, 1e9, -1e9};
  for (double v : t.values<double>()) {
    m.mean += v / static_cast<double>(n);
    m.min = std::min(m.min, v);
    m.max = std::max(m.max, v);
  }
  for (double v : t.values<double>()) m.std_dev += (v - m.mean) * (v - m.mean);
  m.std_dev = std::sqrt(m.std_dev / static_cast<double>(n));
  return m;
}

// Bounds are four standard errors or more.
TEST(Init, Statistics) {
  const Moments normal = MomentsOf(Init::Normal(0.02));
  EXPECT_NEAR(normal.mean, 0, 0.0002);
  EXPECT_NEAR(normal.std_dev, 0.02, 0.00015);
  EXPECT_GT(normal.max, 0.02 * 3.9);
  EXPECT_LT(normal.min, -0.02 * 3.9);
  const Moments truncated = MomentsOf(Init::TruncatedNormal(0.02, 2));
  EXPECT_NEAR(truncated.mean, 0, 0.0002);
  EXPECT_NEAR(truncated.std_dev, 0.02 * 0.87963, 0.00015);  // of a normal distribution cut at two
  EXPECT_LE(truncated.max, 0.04);
  EXPECT_GE(truncated.min, -0.04);
  const Moments uniform = MomentsOf(Init::Uniform(-1, 3));
  EXPECT_NEAR(uniform.mean, 1, 0.011);
  EXPECT_NEAR(uniform.std_dev, 4 / std::sqrt(12.0), 0.01);
  EXPECT_GE(uniform.min, -1);
  EXPECT_LE(uniform.max, 3);
}

TEST(Init, ConstantsAndPaddingRow) {
  Tensor t = Tensor::Empty({3, 2});
  Fill(t, Init::Ones(), 1, "t");
  EXPECT_EQ(t.ToVector<float>(), Floats(6, 1));
  Fill(t, Init::Normal(1, /*zero_row=*/1), 1, "t");
  const Floats values = t.ToVector<float>();
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[3], 0);
  EXPECT_NE(values[0], 0);
  EXPECT_NE(values[5], 0);
}

// Normal values agree with the Box-Muller formula as the C library computes it.
TEST(Init, NormalValuesAreThoseOfTheFormula) {
  constexpr int64_t kValues = 100003;
  Tensor t = Tensor::Empty({kValues}, DType::kF64);
  Fill(t, Init::Normal(1), 77, "formula");
  const uint64_t key = 77 ^ HashName("formula");
  const auto unit = [](uint32_t bits) { return (bits + 0.5) * 0x1p-32; };
  double most = 0;
  for (int64_t i = 0; i < kValues; ++i) {
    const PhiloxBlock block =
        Philox4x32({{static_cast<uint32_t>(i / 4), 0, 0, 0}}, static_cast<uint32_t>(key),
                   static_cast<uint32_t>(key >> 32));
    const int pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log(unit(block.v[pair])));
    const double angle = 2 * std::numbers::pi * unit(block.v[pair + 1]);
    const double expected = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    most = std::max(most, std::fabs(t.data<double>()[i] - expected));
  }
  EXPECT_LT(most, 1e-14);
}

// The first elements do not depend on how many follow.
TEST(Init, ElementsAreIndependentOfTheSize) {
  Tensor small = Tensor::Empty({5}), large = Tensor::Empty({50000});
  Fill(small, Init::TruncatedNormal(1, 1), 3, "t");
  Fill(large, Init::TruncatedNormal(1, 1), 3, "t");
  EXPECT_EQ(small.ToVector<float>(), large.Slice(0, 5).ToVector<float>());
}

// The last of an odd number of columns has a sine without its cosine.
TEST(Init, SinusoidPairsOfAnOddNumberOfColumns) {
  Tensor table = Tensor::Zeros({2, 3});
  Fill(table, Init::SinusoidPairs(), 1, "table");
  const std::vector<float> row = table.Slice(1, 2).ToVector<float>();
  EXPECT_FLOAT_EQ(row[0], static_cast<float>(std::sin(1.0)));
  EXPECT_FLOAT_EQ(row[1], static_cast<float>(std::cos(1.0)));
  EXPECT_FLOAT_EQ(row[2], static_cast<float>(std::sin(std::pow(10000.0, -2.0 / 3))));
}

TEST(Init, SinusoidsNeedPairsOfColumns) {
  Tensor odd = Tensor::Empty({2, 3});
  EXPECT_THROW(Fill(odd, Init::Sinusoids(), 1, "odd"), Error);
}

}  // namespace
}  // namespace lathe
