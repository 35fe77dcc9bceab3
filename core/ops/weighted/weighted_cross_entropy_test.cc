#include "lathe/core/ops/weighted/weighted_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Returns a label for each row of logits. Every third label is kIgnoreIndex.
Tensor Labels(const Tensor& logits) {
  const int64_t n = logits.dim(0), classes = logits.dim(1);
  std::vector<int64_t> labels(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) labels[i] = i % 3 == 2 ? kIgnoreIndex : i * 7 % classes;
  return Tensor::FromVector(labels).To(logits.device());
}

// Returns n weights from 0.25 on; with `zeros`, every fourth is 0.
Tensor Weights(int64_t n, Device device, bool zeros = false) {
  std::vector<float> weights;
  for (int64_t i = 0; i < n; ++i)
    weights.push_back(zeros && i % 4 == 1 ? 0 : 0.25f + static_cast<float>(i * 5 % 7));
  return Tensor::FromVector(weights).To(device);
}

WeightedCrossEntropyOptions Options(const Tensor& logits, bool classes, bool rows, double smoothing,
                                    double gamma) {
  WeightedCrossEntropyOptions options = {.label_smoothing = smoothing, .focal_gamma = gamma};
  if (classes) options.class_weights = Weights(logits.dim(1), logits.device());
  if (rows) options.row_weights = Weights(logits.dim(0), logits.device(), /*zeros=*/true);
  return options;
}

void Check(const char* name, bool classes, bool rows, double smoothing, double gamma) {
  CheckOp({.name = name,
           .op =
               [=](const Tensors& x) {
                 return WeightedCrossEntropy(x[0], Labels(x[0]),
                                             Options(x[0], classes, rows, smoothing, gamma));
               },
           .composed =
               [=](const Tensors& x) {
                 return WeightedCrossEntropyComposed(
                     x[0], Labels(x[0]), Options(x[0], classes, rows, smoothing, gamma));
               },
           .shapes = {{{5, 3}}, {{4, 2}}, {{0, 3}}, {{90, 200}}, {{3, 1100}}},
           .nan_check = false});
}

TEST(WeightedCrossEntropy, ClassWeights) { Check("class_weights", true, false, 0, 0); }
TEST(WeightedCrossEntropy, RowWeights) { Check("row_weights", false, true, 0, 0); }
TEST(WeightedCrossEntropy, LabelSmoothing) { Check("label_smoothing", false, false, 0.1, 0); }
TEST(WeightedCrossEntropy, FocalLoss) {
  Check("focal_2", false, false, 0, 2);
  Check("focal_half", true, true, 0, 0.5);
}
TEST(WeightedCrossEntropy, All) { Check("all", true, true, 0.3, 1.5); }

TEST(WeightedCrossEntropy, OfNothingElseItIsCrossEntropy) {
  const Tensor logits = Tensor::FromVector<double>({1, 2, 3, 0, -1, 2, 0.5, 1, 4}, {3, 3});
  EXPECT_NEAR(WeightedCrossEntropy(logits, Labels(logits), {}).Item(),
              CrossEntropy(logits, Labels(logits)).Item(), 1e-12);
  const Tensor labels = Tensor::FromVector<int64_t>({0, -1, -7});
  EXPECT_NEAR(WeightedCrossEntropy(logits, labels, {.ignore_index = kIgnoreNegative}).Item(),
              CrossEntropy(logits, labels, kIgnoreNegative).Item(), 1e-12);
}

// A certain row has no loss and a finite gradient, where the formula divides 0 by 0.
TEST(WeightedCrossEntropy, FocalLossOfACertainRow) {
  for (const double gamma : {0.5, 1.0, 2.0}) {
    const Device device = CheckedDevice();
    if (!device.is_cpu() && !HasCheckedDevice()) GTEST_SKIP() << WhyNoCheckedDevice();
    Tensor logits = Tensor::FromVector<float>({200, 0, 0, 1}, {2, 2}).To(device);
    logits.SetRequiresGrad(true);
    const Tensor loss = WeightedCrossEntropy(logits, Tensor::FromVector<int64_t>({0, 1}).To(device),
                                             {.focal_gamma = gamma});
    const double p = 1 / (1 + std::exp(-1)), expected = -std::pow(1 - p, gamma) * std::log(p) / 2;
    EXPECT_NEAR(loss.Item(), expected, 1e-6);
    Backward(loss);
    const std::vector<float> grad = logits.grad().ToVector<float>();
    EXPECT_EQ(grad[0], 0);
    EXPECT_EQ(grad[1], 0);
    EXPECT_NEAR(grad[2], -grad[3], 1e-6);
    EXPECT_GT(grad[2], 0);
  }
}

TEST(WeightedCrossEntropy, WithoutAnyWeightTheLossIsZero) {
  const Device device = CheckedDevice();
  if (!device.is_cpu() && !HasCheckedDevice()) GTEST_SKIP() << WhyNoCheckedDevice();
  Tensor logits = Tensor::Full({2, 3}, 1.5, DType::kF32, device).SetRequiresGrad(true);
  const Tensor labels = Tensor::FromVector<int64_t>({0, 1}).To(device);
  const Tensor loss = WeightedCrossEntropy(
      logits, labels, {.row_weights = Tensor::Zeros({2}, DType::kF32, device)});
  EXPECT_EQ(loss.Item(), 0);
  Backward(loss);
  EXPECT_EQ(logits.grad().ToVector<float>(), std::vector<float>(6, 0));
}

TEST(WeightedCrossEntropy, LabelOutOfRange) {
  const Tensor labels = Tensor::FromVector<int64_t>({0, 3, kIgnoreIndex});
  EXPECT_THROW(WeightedCrossEntropy(Tensor::Zeros({3, 3}), labels, {}), Error);
  if (CheckedDevice().is_cpu() || !HasCheckedDevice()) return;
  Tensor logits = Tensor::Full({3, 3}, 1.5, DType::kF32, CheckedDevice()).SetRequiresGrad(true);
  const Tensor loss =
      WeightedCrossEntropy(logits, labels.To(CheckedDevice()), {.label_smoothing = 0.1});
  EXPECT_TRUE(std::isnan(loss.Item()));
  Backward(loss);
  const std::vector<float> grad = logits.grad().ToVector<float>();
  for (size_t i = 0; i < grad.size(); ++i) EXPECT_EQ(std::isnan(grad[i]), i / 3 == 1) << i;
}

TEST(WeightedCrossEntropy, Errors) {
  const Tensor logits = Tensor::Zeros({2, 3}), labels = Tensor::FromVector<int64_t>({0, 1});
  try {
    WeightedCrossEntropy(logits, labels, {.class_weights = Tensor::Zeros({2})});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(),
              "[weighted_cross_entropy] class_weights must have shape [3] float32 but have [2] "
              "float32");
  }
  EXPECT_THROW(WeightedCrossEntropy(logits, labels, {.row_weights = Tensor::Zeros({3})}), Error);
  EXPECT_THROW(
      WeightedCrossEntropy(logits, labels, {.row_weights = Tensor::Zeros({2}, DType::kF64)}),
      Error);
  EXPECT_THROW(WeightedCrossEntropy(logits, labels, {.label_smoothing = 1.5}), Error);
  EXPECT_THROW(WeightedCrossEntropy(logits, labels, {.focal_gamma = -1}), Error);
  EXPECT_THROW(WeightedCrossEntropy(logits, Tensor::FromVector<int32_t>({0, 1}), {}), Error);
  EXPECT_THROW(WeightedCrossEntropy(Tensor::Zeros({2}), labels, {}), Error);
}

}  // namespace
}  // namespace lathe
