#include "lathe/core/ops/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr int64_t kColumns = 258;  // not a multiple of four, the words of a Philox block

// Returns a spec for `rows` tokens of one sample, from position 0 on.
DropoutSpec Spec(double p, int64_t rows, int32_t sample = 0, RandomKey key = {42, 7, 3},
                 Device device = {}) {
  std::vector<int32_t> positions(rows);
  for (int64_t r = 0; r < rows; ++r) positions[r] = static_cast<int32_t>(r);
  return {.p = p,
          .key = key,
          .row_samples = Tensor::FromVector(std::vector<int32_t>(rows, sample)).To(device),
          .row_positions = Tensor::FromVector(positions).To(device)};
}

Tensor Ones(int64_t rows) { return Tensor::Full({rows, kColumns}, 1); }

double Sum(const Tensor& t) {
  double sum = 0;
  for (float x : t.values<float>()) sum += x;
  return sum;
}

double Agreement(const Tensor& a, const Tensor& b) {
  int64_t same = 0;
  for (int64_t i = 0; i < a.numel(); ++i) same += a.data<float>()[i] == b.data<float>()[i];
  return static_cast<double>(same) / static_cast<double>(a.numel());
}

TEST(DropoutTest, Op) {
  for (double p : {0.0, 0.3}) {
    CheckOp(
        {.name = "dropout",
         .op =
             [=](const Tensors& x) {
               const DropoutSpec spec = Spec(p, x[0].dim(0), 0, {42, 7, 3}, x[0].device());
               return Reshape(Dropout(x[0], spec), x[0].shape());
             },
         .composed = [=](const Tensors& x) { return DropoutComposed(x[0], Spec(p, x[0].dim(0))); },
         .shapes = {{{3, 8}}, {{5, 7}}, {{4, 1}}, {{0, 8}}, {{2, 258}}, {{3, 64}}},
         .nan_check = p == 0,  // NaN may be dropped
         .activations = {0}});
  }
}

// Masks come straight from Philox: column w * nb + b is word w of block b, with nb = ceil(n / 4)
// for rows of n columns.
TEST(DropoutTest, MasksArePhilox) {
  const RandomKey key = {0x123456789abcdef0, 7, 3};
  for (const int64_t n : {1, 3, 4, 7, 15, 16, 17, 63, 64, 65, 100, 128, 258, 384, 768, 1028}) {
    const Tensor y = Dropout(Tensor::Full({3, n}, 1), Spec(0.3, 3, 11, key));
    const int64_t blocks = (n + 3) / 4;
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        const PhiloxBlock block = Philox4x32(
            {{static_cast<uint32_t>(c % blocks), static_cast<uint32_t>(r), 11, key.step}},
            key.key0(), key.key1());
        ASSERT_EQ(y.data<float>()[r * n + c] == 0, block.v[c / blocks] < DropThreshold(0.3))
            << "row " << r << ", column " << c << " of " << n;
      }
    }
  }
}

TEST(DropoutTest, TheSameNumbersOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  for (const auto& [rows, n] : {std::pair{3, 1},
                                {2, 3},
                                {3, 5},
                                {7, 32},
                                {5, 96},
                                {4, 258},
                                {3, 768},
                                {2, 1028},
                                {300, 64}}) {
    std::vector<float> values(static_cast<size_t>(rows * n));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i));
    }
    const Tensor x = Tensor::FromVector(values, {rows, n});
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::to_string(n) + " columns, " + ToString(dtype));
      const Tensor rounded = x.To(dtype);
      const Tensor expected = Dropout(rounded.To(DType::kF32), Spec(0.3, rows)).To(dtype);
      const Tensor y = Dropout(rounded.To(device), Spec(0.3, rows, 0, {42, 7, 3}, device));
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.To(DType::kF32).ToVector<float>(), expected.To(DType::kF32).ToVector<float>());
      DropoutSpec step_there = Spec(0.3, rows, 0, {42, 99, 3}, device);
      step_there.device_step = Tensor::FromVector<int32_t>({7}).To(device);
      const Tensor same = Dropout(rounded.To(device), step_there);
      EXPECT_EQ(same.To(DType::kF32).ToVector<float>(), y.To(DType::kF32).ToVector<float>());
    }
  }
  EXPECT_THROW(Dropout(Ones(2).To(device), Spec(0.1, 2)), Error);  // the row arrays lie on the host
}

TEST(DropoutTest, KeepsTheMeanAndDropsTheShare) {
  for (double p : {0.1, 0.5, 0.9}) {
    const Tensor y = Dropout(Ones(400), Spec(p, 400));
    const double n = static_cast<double>(y.numel());
    int64_t dropped = 0;
    for (float value : y.values<float>()) {
      dropped += value == 0;
      const float kept = static_cast<float>(1 / (1 - p));
      EXPECT_TRUE(value == 0 || std::fabs(value / kept - 1) < 1e-6) << value;
    }
    EXPECT_NEAR(static_cast<double>(dropped) / n, p, 5 * std::sqrt(p * (1 - p) / n));
    EXPECT_NEAR(Sum(y) / n, 1, 5 * std::sqrt(p / (1 - p) / n));
  }
}

TEST(DropoutTest, MaskDependsOnTheSampleAndPositionNotOnTheRow) {
  const Tensor together = Dropout(Ones(9), Spec(0.5, 9, /*sample=*/5));
  DropoutSpec moved = Spec(0.5, 9, 5);
  moved.row_positions.data<int32_t>()[0] = 8;
  moved.row_positions.data<int32_t>()[8] = 0;
  const Tensor swapped = Dropout(Ones(9), moved);
  EXPECT_EQ(Agreement(swapped.Slice(0, 1), together.Slice(8, 9)), 1);
  EXPECT_EQ(Agreement(swapped.Slice(8, 9), together.Slice(0, 1)), 1);
  EXPECT_EQ(Agreement(swapped.Slice(1, 8), together.Slice(1, 8)), 1);
}

TEST(DropoutTest, SeedStepSiteAndSampleEachGiveAnotherMask) {
  const Tensor base = Dropout(Ones(40), Spec(0.5, 40));
  EXPECT_EQ(Agreement(base, Dropout(Ones(40), Spec(0.5, 40))), 1);
  for (const DropoutSpec& other :
       {Spec(0.5, 40, 0, {43, 7, 3}), Spec(0.5, 40, 0, {42, 8, 3}), Spec(0.5, 40, 0, {42, 7, 4}),
        Spec(0.5, 40, 1), Spec(0.5, 40, 0, {42 + (uint64_t{1} << 32), 7, 3})}) {
    EXPECT_NEAR(Agreement(base, Dropout(Ones(40), other)), 0.5, 0.03);
  }
}

// The row arrays may have more rows than x. Model heads rely on this: BERT's contexts have rows
// that belong to no token.
TEST(DropoutTest, TakesTheFirstOfMoreRows) {
  const Tensor few = Dropout(Ones(5), Spec(0.5, 8)), all = Dropout(Ones(8), Spec(0.5, 8));
  EXPECT_EQ(few.ToVector<float>(), SliceRows(all, 0, 5).ToVector<float>());
}

TEST(DropoutTest, BackwardUsesTheForwardMask) {
  Tensor x = Ones(6).SetRequiresGrad(true);
  const Tensor y = Dropout(x, Spec(0.3, 6));
  Backward(y, Ones(6));
  EXPECT_EQ(Agreement(x.grad(), y), 1);
}

TEST(DropoutTest, NothingAtZeroAndErrorsOutsideTheRange) {
  const Tensor x = Ones(2);
  EXPECT_EQ(Dropout(x, {}).raw_data(), x.raw_data());
  EXPECT_THROW(Dropout(x, Spec(1.0, 2)), Error);
  EXPECT_THROW(Dropout(x, Spec(-0.1, 2)), Error);
  EXPECT_THROW(Dropout(x, Spec(0.1, 1)), Error);
}

}  // namespace
}  // namespace lathe
