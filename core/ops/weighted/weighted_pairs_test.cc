#include "lathe/core/ops/weighted/weighted_pairs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/losses.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Returns n weights from 0.25 on; with `zeros`, every fourth is 0.
Tensor Weights(int64_t n, Device device, bool zeros = false) {
  std::vector<float> weights;
  for (int64_t i = 0; i < n; ++i)
    weights.push_back(zeros && i % 4 == 1 ? 0 : 0.25f + static_cast<float>(i * 5 % 7));
  return Tensor::FromVector(weights).To(device);
}

// Returns targets of 0, 1 and 0.5 for these logits.
Tensor Targets(const Tensor& logits) {
  std::vector<double> targets;
  for (int64_t i = 0; i < logits.numel(); ++i)
    targets.push_back(i % 5 == 4 ? 0.5 : static_cast<double>(i * 3 % 2));
  return Tensor::FromVector(targets, logits.shape()).To(logits.dtype()).To(logits.device());
}

WeightedBceOptions Options(const Tensor& logits, bool positive, bool rows, double gamma) {
  WeightedBceOptions options = {.focal_gamma = gamma};
  if (positive) options.positive_weights = Weights(logits.dim(1), logits.device());
  if (rows) options.row_weights = Weights(logits.dim(0), logits.device(), /*zeros=*/true);
  return options;
}

void CheckBce(const char* name, bool positive, bool rows, double gamma) {
  CheckOp({.name = name,
           .op =
               [=](const Tensors& x) {
                 return WeightedBceWithLogits(x[0], Targets(x[0]),
                                              Options(x[0], positive, rows, gamma));
               },
           .composed =
               [=](const Tensors& x) {
                 return WeightedBceWithLogitsComposed(x[0], Targets(x[0]),
                                                      Options(x[0], positive, rows, gamma));
               },
           .shapes = {{{5, 3}}, {{1, 1}}, {{0, 3}}, {{150, 130}}}});
}

TEST(WeightedPairs, PositiveWeights) { CheckBce("positive_weights", true, false, 0); }
TEST(WeightedPairs, RowWeights) { CheckBce("bce_row_weights", false, true, 0); }
TEST(WeightedPairs, FocalLoss) {
  CheckBce("focal_bce_2", false, false, 2);
  CheckBce("focal_bce_half", true, true, 0.5);
}

TEST(WeightedPairs, Mse) {
  CheckOp({.name = "weighted_mse",
           .op =
               [](const Tensors& x) {
                 return WeightedMse(x[0], Targets(x[0]),
                                    Weights(x[0].dim(0), x[0].device(), /*zeros=*/true));
               },
           .composed =
               [](const Tensors& x) {
                 return WeightedMseComposed(x[0], Targets(x[0]),
                                            Weights(x[0].dim(0), x[0].device(), /*zeros=*/true));
               },
           .shapes = {{{5}}, {{5, 1}}, {{2, 3}}, {{0}}, {{150, 130}}}});
}

TEST(WeightedPairs, WithoutWeightsTheyAreThePlainLosses) {
  const Tensor x = Tensor::FromVector<double>({1, -2, 3, 0, -1, 2}, {2, 3});
  EXPECT_NEAR(WeightedBceWithLogits(x, Targets(x), {}).Item(),
              BceWithLogitsLoss(x, Targets(x)).Item(), 1e-12);
  EXPECT_NEAR(WeightedMse(x, Targets(x), {}).Item(), MseLoss(x, Targets(x)).Item(), 1e-12);
}

// Rows beyond those that count change nothing.
TEST(WeightedPairs, OfTheFirstRows) {
  for (const int32_t rows : {1, 4, 5}) {
    const auto count = [&](const Tensor& x) {
      return Tensor::FromVector<int32_t>({rows}).To(x.device());
    };
    const auto first = [&](const Tensor& x) { return SliceRows(x, 0, rows); };
    CheckOp({.name = "bce_of_first_rows",
             .op =
                 [&](const Tensors& x) {
                   WeightedBceOptions options = Options(x[0], true, true, 0);
                   options.num_rows = count(x[0]);
                   return WeightedBceWithLogits(x[0], Targets(x[0]), options);
                 },
             .composed =
                 [&](const Tensors& x) {
                   return WeightedBceWithLogitsComposed(first(x[0]), first(Targets(x[0])),
                                                        Options(first(x[0]), true, true, 0));
                 },
             .shapes = {{{rows + 3, 3}}},
             .nan_check = false});
  }
  // num_rows may be negative or above the number of rows. Rows that don't count get gradient 0.
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Device device = CheckedDevice();
  for (const int32_t rows : {-1, 0, 2, 3}) {
    Tensor x = Tensor::Full({2, 2}, 3.0, DType::kF32, device).SetRequiresGrad(true);
    const Tensor loss = WeightedMse(x, Tensor::Zeros({2, 2}, DType::kF32, device), {},
                                    Tensor::FromVector<int32_t>({rows}).To(device));
    EXPECT_EQ(loss.Item(), rows < 2 ? 0 : 9) << rows;
    Backward(loss);
    EXPECT_EQ(x.grad().ToVector<float>(), std::vector<float>(4, rows < 2 ? 0 : 1.5)) << rows;
  }
}

TEST(WeightedPairs, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_THROW(WeightedBceWithLogits(x, Tensor::Zeros({3, 2}), {}), Error);
  EXPECT_THROW(WeightedBceWithLogits(Tensor::Zeros({2}), Tensor::Zeros({2}), {}), Error);
  EXPECT_THROW(WeightedBceWithLogits(x, x, {.positive_weights = Tensor::Zeros({2})}), Error);
  EXPECT_THROW(WeightedBceWithLogits(x, x, {.row_weights = Tensor::Zeros({3})}), Error);
  EXPECT_THROW(WeightedBceWithLogits(x, x, {.focal_gamma = NAN}), Error);
  EXPECT_THROW(WeightedMse(x, x, Tensor::Zeros({2, 1})), Error);
}

}  // namespace
}  // namespace lathe
