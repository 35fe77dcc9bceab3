#include "lathe/core/ops/losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lathe/core/autograd.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
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

bool HasDevice() {
  DeviceBackend* backend = FindDeviceBackend();
  return !CheckedDevice().is_cpu() && backend != nullptr && backend->Count() > 0;
}

TEST(Losses, CrossEntropy) {
  const std::vector<std::vector<Shape>> shapes = {{{5, 3}}, {{1, 1}},    {{4, 2}},
                                                  {{0, 3}}, {{90, 200}}, {{3, 1100}}};
  CheckOp({.name = "cross_entropy",
           .op = [](const Tensors& x) { return CrossEntropy(x[0], Labels(x[0])); },
           .composed = [](const Tensors& x) { return CrossEntropyComposed(x[0], Labels(x[0])); },
           .shapes = shapes,
           .nan_check = false});
  CheckOp(
      {.name = "cross_entropy_with_denominator",
       .op = [](const Tensors& x) { return CrossEntropy(x[0], Labels(x[0]), kIgnoreIndex, 7.5); },
       .composed =
           [](const Tensors& x) {
             return CrossEntropyComposed(x[0], Labels(x[0]), kIgnoreIndex, 7.5);
           },
       .shapes = shapes,
       .nan_check = false});
  CheckOp({.name = "cross_entropy_nan",
           .op =
               [](const Tensors& x) {
                 return CrossEntropy(x[0], Tensor::Zeros({2}, DType::kI64, x[0].device()));
               },
           .composed =
               [](const Tensors& x) {
                 return CrossEntropyComposed(x[0], Tensor::Zeros({2}, DType::kI64));
               },
           .shapes = {{{2, 3}}}});
}

TEST(Losses, CrossEntropyAllIgnored) {
  Tensor logits = Tensor::Full({2, 3}, 1.5).SetRequiresGrad(true);
  const Tensor labels = Tensor::Full({2}, kIgnoreIndex, DType::kI64);
  const Tensor loss = CrossEntropy(logits, labels);
  EXPECT_TRUE(std::isnan(loss.Item()));
  Backward(loss);
  EXPECT_EQ(logits.grad().ToVector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(CrossEntropy(logits, labels, kIgnoreIndex, 4).Item(), 0);
}

TEST(Losses, CrossEntropyAllIgnoredOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  Tensor logits = Tensor::Full({2, 3}, 1.5, DType::kF32, CheckedDevice()).SetRequiresGrad(true);
  const Tensor labels = Tensor::Full({2}, kIgnoreIndex, DType::kI64, CheckedDevice());
  const Tensor loss = CrossEntropy(logits, labels);
  EXPECT_TRUE(std::isnan(loss.Item()));
  Backward(loss);
  EXPECT_EQ(logits.grad().ToVector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(CrossEntropy(logits, labels, kIgnoreIndex, 4).Item(), 0);
}

// Every third label is negative, and not always kIgnoreIndex.
TEST(Losses, CrossEntropyIgnoresNegativeLabels) {
  const auto labels = [](const Tensor& logits) {
    std::vector<int64_t> values = Labels(logits.Detach().To(Device{})).ToVector<int64_t>();
    for (size_t i = 2; i < values.size(); i += 6) values[i] = -1;
    return Tensor::FromVector(values).To(logits.device());
  };
  CheckOp(
      {.name = "cross_entropy_ignoring_negatives",
       .op = [=](const Tensors& x) { return CrossEntropy(x[0], labels(x[0]), kIgnoreNegative); },
       .composed =
           [=](const Tensors& x) {
             return CrossEntropyComposed(x[0], labels(x[0]), kIgnoreNegative);
           },
       .shapes = {{{5, 3}}, {{9, 2}}, {{0, 3}}, {{90, 200}}, {{3, 1100}}},
       .nan_check = false});
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  Tensor logits = Tensor::Full({2, 3}, 1.5, DType::kF32, CheckedDevice()).SetRequiresGrad(true);
  const Tensor loss =
      CrossEntropy(logits, Tensor::Full({2}, -1, DType::kI64, CheckedDevice()), kIgnoreNegative);
  EXPECT_EQ(loss.Item(), 0);
  Backward(loss);
  EXPECT_EQ(logits.grad().ToVector<float>(), std::vector<float>(6, 0));
}

TEST(Losses, CrossEntropyLabelOutOfRangeOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  for (const int64_t wrong : {int64_t{3}, int64_t{-1}, int64_t{1} << 40}) {
    Tensor logits = Tensor::Full({3, 3}, 1.5, DType::kF32, CheckedDevice()).SetRequiresGrad(true);
    const Tensor labels = Tensor::FromVector<int64_t>({0, wrong, kIgnoreIndex}).To(CheckedDevice());
    const Tensor loss = CrossEntropy(logits, labels);
    EXPECT_TRUE(std::isnan(loss.Item()));
    Backward(loss);
    const std::vector<float> grad = logits.grad().ToVector<float>();
    for (size_t i = 0; i < grad.size(); ++i) EXPECT_EQ(std::isnan(grad[i]), i / 3 == 1) << i;
  }
}

// The device agrees with the host on more rows than the summing blocks take at once.
TEST(Losses, CrossEntropyOfManyRowsOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  std::vector<float> values(9001 * 3);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(4 * std::sin(static_cast<double>(i)));
  }
  Tensor host = Tensor::FromVector(values, {9001, 3});
  Tensor device = host.To(CheckedDevice());
  host.SetRequiresGrad(true);
  device.SetRequiresGrad(true);
  const Tensor expected = CrossEntropy(host, Labels(host));
  const Tensor loss = CrossEntropy(device, Labels(device));
  EXPECT_NEAR(loss.Item(), expected.Item(), 1e-6);
  Backward(expected);
  Backward(loss);
  const std::vector<float> actual = device.grad().ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(actual[i], host.grad().values<float>()[i], 1e-9) << i;
  }
}

TEST(Losses, ErrorsOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  const Tensor logits = Tensor::Zeros({2, 3}, DType::kF32, CheckedDevice());
  EXPECT_THROW(CrossEntropy(logits, Tensor::Zeros({2}, DType::kI64)), Error);
  EXPECT_THROW(MseLoss(logits, Tensor::Zeros({2, 3})), Error);
}

// The loss of narrow numbers is that of the same numbers in float32. The gradients are narrow.
TEST(Losses, NarrowInputs) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Device device = CheckedDevice();
  const Tensor labels = Tensor::FromVector<int64_t>({2, kIgnoreIndex, 0}).To(device);
  const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> losses = {
      [&](const Tensor& x, const Tensor&) { return CrossEntropy(x, labels); },
      [](const Tensor& x, const Tensor& t) { return SoftCrossEntropy(x, t); },
      [](const Tensor& x, const Tensor& t) { return MseLoss(x, t); },
      [](const Tensor& x, const Tensor& t) { return BceWithLogitsLoss(x, t); }};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& loss_of : losses) {
      const auto run = [&](bool narrow) {
        std::vector<Tensor> inputs;
        for (const float shift : {-1.0f, 0.1f}) {
          const Tensor x = Tensor::FromVector<float>(
              {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f}, {3, 3});
          const Tensor rounded = AddScalar(x, shift).To(dtype);
          inputs.push_back((narrow ? rounded : rounded.To(DType::kF32)).To(device));
          inputs.back().SetRequiresGrad(true);
        }
        const Tensor loss = loss_of(inputs[0], inputs[1]);
        EXPECT_EQ(loss.dtype(), DType::kF32);
        Backward(loss);
        std::vector<float> results = {static_cast<float>(loss.Item())};
        for (const Tensor& x : inputs) {
          if (!x.grad().defined()) continue;
          EXPECT_EQ(x.grad().dtype(), x.dtype());
          for (const float d : x.grad().To(dtype).To(DType::kF32).ToVector<float>())
            results.push_back(d);
        }
        return results;
      };
      EXPECT_EQ(run(true), run(false));
    }
  }
}

TEST(Losses, CrossEntropyErrors) {
  const Tensor logits = Tensor::Zeros({2, 3});
  try {
    CrossEntropy(logits, Tensor::FromVector<int64_t>({0, 3}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "[cross_entropy] the label of row 1 is 3 but there are 3 classes");
  }
  EXPECT_THROW(CrossEntropy(logits, Tensor::FromVector<int64_t>({0, -1})), Error);
  EXPECT_NO_THROW(CrossEntropy(logits, Tensor::FromVector<int64_t>({0, -1}), -1));
  EXPECT_THROW(CrossEntropy(logits, Tensor::FromVector<int64_t>({0})), Error);
  EXPECT_THROW(CrossEntropy(logits, Tensor::FromVector<int32_t>({0, 1})), Error);
  EXPECT_THROW(CrossEntropy(Tensor::Zeros({3}), Tensor::FromVector<int64_t>({0})), Error);
}

// Rows beyond those that count change nothing.
TEST(Losses, OfTheFirstRows) {
  const auto first = [](const Tensor& x, int64_t rows) { return SliceRows(x, 0, rows); };
  const auto count = [](int32_t rows, Device device) {
    return Tensor::FromVector<int32_t>({rows}).To(device);
  };
  for (const int32_t rows : {1, 4, 5, 70}) {
    for (const double denominator : {0.0, 7.5}) {
      const int64_t there = rows;
      const std::vector<Shape> shapes = {{rows + 3, 3}, {rows + 3, 3}};
      CheckOp({.name = "mse_of_first_rows",
               .op =
                   [&](const Tensors& x) {
                     return MseLoss(x[0], x[1], denominator, count(rows, x[0].device()));
                   },
               .composed =
                   [&](const Tensors& x) {
                     return MseLossComposed(first(x[0], there), first(x[1], there), denominator);
                   },
               .shapes = {shapes},
               .nan_check = false});
      CheckOp({.name = "bce_of_first_rows",
               .op =
                   [&](const Tensors& x) {
                     return BceWithLogitsLoss(x[0], x[1], denominator, count(rows, x[0].device()));
                   },
               .composed =
                   [&](const Tensors& x) {
                     return BceWithLogitsLossComposed(first(x[0], there), first(x[1], there),
                                                      denominator);
                   },
               .shapes = {shapes},
               .nan_check = false});
      CheckOp({.name = "soft_cross_entropy_of_first_rows",
               .op =
                   [&](const Tensors& x) {
                     return SoftCrossEntropy(x[0], x[1], denominator, count(rows, x[0].device()));
                   },
               .composed =
                   [&](const Tensors& x) {
                     return SoftCrossEntropyComposed(first(x[0], there), first(x[1], there),
                                                     denominator);
                   },
               .shapes = {shapes},
               .nan_check = false});
    }
  }
  // num_rows may be negative or above the number of rows. Rows that don't count get gradient 0.
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  for (const int32_t rows : {-1, 0, 2, 3}) {
    Tensor x = Tensor::Full({2, 2}, 3.0, DType::kF32, CheckedDevice()).SetRequiresGrad(true);
    const Tensor loss = MseLoss(x, Tensor::Zeros({2, 2}, DType::kF32, CheckedDevice()), 2,
                                count(rows, CheckedDevice()));
    EXPECT_EQ(loss.Item(), rows < 2 ? 0 : 18) << rows;
    Backward(loss);
    EXPECT_EQ(x.grad().ToVector<float>(), std::vector<float>(4, rows < 2 ? 0 : 3)) << rows;
  }
}

// The losses of two micro-batches, each divided by the whole count, add up to the mean over both.
TEST(Losses, DenominatorOfALargerWindow) {
  const Tensor logits = Tensor::FromVector<double>({1, 2, 3, 0, -1, 2, 0.5, 1, 4, 1, 1, 1}, {4, 3});
  const Tensor labels = Tensor::FromVector<int64_t>({0, 2, kIgnoreIndex, 1});
  const double whole = CrossEntropy(logits, labels).Item();
  const double parts =
      CrossEntropy(logits.Slice(0, 2), labels.Slice(0, 2), kIgnoreIndex, 3).Item() +
      CrossEntropy(logits.Slice(2, 4), labels.Slice(2, 4), kIgnoreIndex, 3).Item();
  EXPECT_NEAR(whole, parts, 1e-12);
}

TEST(Losses, NarrowNumbersTakeTargetsInFloat32) {
  const Tensor x = Tensor::FromVector<float>({0.5, -1.25, 2, 0}, {2, 2});
  const Tensor target = Tensor::FromVector<float>({0.1f, 0.9f, 0.3f, 0.7f}, {2, 2});
  for (const auto loss : {+[](const Tensor&a, const Tensor&b) { return MseLoss(a, b); },
                          +[](const Tensor&a, const Tensor&b) { return BceWithLogitsLoss(a, b); },
                          +[](const Tensor&a, const Tensor&b) { return SoftCrossEntropy(a, b); }}) {
    const Tensor narrow = loss(x.To(DType::kBF16), target);  // x is exact in bfloat16
    EXPECT_EQ(narrow.dtype(), DType::kF32);
    EXPECT_EQ(narrow.Item(), loss(x, target).Item());
    EXPECT_THROW(loss(x.To(DType::kBF16), target.To(DType::kF64)), Error);
  }
}

TEST(Losses, Mse) {
  const std::vector<std::vector<Shape>> shapes = {
      {{5}, {5}}, {{2, 3}, {2, 3}}, {{0}, {0}}, {{150, 130}, {150, 130}}};
  CheckOp({.name = "mse_loss",
           .op = [](const Tensors& x) { return MseLoss(x[0], x[1]); },
           .composed = [](const Tensors& x) { return MseLossComposed(x[0], x[1]); },
           .shapes = shapes});
  CheckOp({.name = "mse_loss_with_denominator",
           .op = [](const Tensors& x) { return MseLoss(x[0], x[1], 8); },
           .composed = [](const Tensors& x) { return MseLossComposed(x[0], x[1], 8); },
           .shapes = shapes});
  EXPECT_THROW(MseLoss(Tensor::Zeros({2, 1}), Tensor::Zeros({2})), Error);
}

TEST(Losses, SoftCrossEntropy) {
  const std::vector<std::vector<Shape>> shapes = {
      {{5, 3}, {5, 3}}, {{1, 1}, {1, 1}}, {{0, 3}, {0, 3}}, {{40, 130}, {40, 130}}};
  for (const double denominator : {0.0, 8.0}) {
    CheckOp(
        {.name = "soft_cross_entropy",
         .op = [=](const Tensors& x) { return SoftCrossEntropy(x[0], x[1], denominator); },
         .composed =
             [=](const Tensors& x) { return SoftCrossEntropyComposed(x[0], x[1], denominator); },
         .shapes = shapes});
  }
  // With all weight on one class it is the cross-entropy of that class.
  const Tensor logits = Tensor::FromVector<double>({1, 2, 3, 0, -1, 2}, {2, 3});
  EXPECT_NEAR(
      SoftCrossEntropy(logits, Tensor::FromVector<double>({0, 0, 1, 1, 0, 0}, {2, 3})).Item(),
      CrossEntropy(logits, Tensor::FromVector<int64_t>({2, 0})).Item(), 1e-12);
  EXPECT_THROW(SoftCrossEntropy(Tensor::Zeros({2}), Tensor::Zeros({2})), Error);
  EXPECT_THROW(SoftCrossEntropy(Tensor::Zeros({2, 1}), Tensor::Zeros({1, 2})), Error);
}

TEST(Losses, BceWithLogits) {
  const std::vector<std::vector<Shape>> shapes = {
      {{5}, {5}}, {{2, 3}, {2, 3}}, {{0}, {0}}, {{150, 130}, {150, 130}}};
  CheckOp({.name = "bce_with_logits_loss",
           .op = [](const Tensors& x) { return BceWithLogitsLoss(x[0], x[1]); },
           .composed = [](const Tensors& x) { return BceWithLogitsLossComposed(x[0], x[1]); },
           .shapes = shapes});
  CheckOp({.name = "bce_with_logits_loss_with_denominator",
           .op = [](const Tensors& x) { return BceWithLogitsLoss(x[0], x[1], 8); },
           .composed = [](const Tensors& x) { return BceWithLogitsLossComposed(x[0], x[1], 8); },
           .shapes = shapes});
  // The loss equals the textbook formula where that does not cancel.
  const Tensor x = Tensor::FromVector<double>({-1.5, 0.25, 2});
  const Tensor t = Tensor::FromVector<double>({0, 0.5, 1});
  double expected = 0;
  for (int i = 0; i < 3; ++i) {
    const double s = Sigmoid(x).ToVector<double>()[i], target = t.ToVector<double>()[i];
    expected -= (target * std::log(s) + (1 - target) * std::log(1 - s)) / 3;
  }
  EXPECT_NEAR(BceWithLogitsLoss(x, t).Item(), expected, 1e-12);
  EXPECT_EQ(BceWithLogitsLoss(Tensor::FromVector<float>({1e4f}), Tensor::Zeros({1})).Item(), 1e4);
  EXPECT_THROW(BceWithLogitsLoss(Tensor::Zeros({2, 1}), Tensor::Zeros({2})), Error);
}

}  // namespace
}  // namespace lathe
