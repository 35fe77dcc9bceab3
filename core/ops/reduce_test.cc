#include "lathe/core/ops/reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

const std::vector<std::vector<Shape>> kShapes = {{{5}},       {{2, 3, 4}}, {{0, 3}}, {{3, 1}},
                                                 {{90, 200}}, {{3, 1100}}, {{33, 7}}};

TEST(Reduce, Sums) {
  CheckOp({.name = "sum",
           .op = [](const Tensors& x) { return Sum(x[0]); },
           .shapes = kShapes,
           .activations = {0}});
  CheckOp({.name = "sum_of_scalar",
           .op = [](const Tensors& x) { return Sum(x[0]); },
           .shapes = {{{}}},
           .activations = {0}});
  CheckOp({.name = "mean",
           .op = [](const Tensors& x) { return Mean(x[0]); },
           .shapes = kShapes,
           .activations = {0}});
  CheckOp({.name = "sum_last",
           .op = [](const Tensors& x) { return SumLast(x[0]); },
           .shapes = kShapes,
           .activations = {0}});
  CheckOp({.name = "mean_last",
           .op = [](const Tensors& x) { return MeanLast(x[0]); },
           .shapes = kShapes,
           .activations = {0}});
}

TEST(Reduce, AMeanOfNarrowNumbersIsRoundedOnce) {
  for (const int64_t n : {1000, 100001}) {
    Tensor x = Tensor::Full({n}, 1.5, DType::kBF16).SetRequiresGrad(true);
    const Tensor mean = Mean(x);
    EXPECT_EQ(mean.dtype(), DType::kBF16);
    EXPECT_EQ(mean.Item(), 1.5);
    Backward(mean);
    EXPECT_EQ(x.grad().Slice(0, 1).Item(),
              Tensor::Full({1}, 1.0 / static_cast<double>(n)).To(DType::kBF16).Item());
  }
}

TEST(Reduce, Softmax) {
  CheckOp({.name = "softmax",
           .op = [](const Tensors& x) { return SoftmaxLast(x[0]); },
           .composed = [](const Tensors& x) { return Div(Exp(x[0]), SumLast(Exp(x[0]))); },
           .shapes = kShapes,
           .activations = {0}});
  CheckOp({.name = "log_softmax",
           .op = [](const Tensors& x) { return LogSoftmaxLast(x[0]); },
           .composed = [](const Tensors& x) { return Sub(x[0], Log(SumLast(Exp(x[0])))); },
           .shapes = kShapes,
           .activations = {0}});
}

// With many columns the probabilities are small, so the test multiplies them to show their errors.
TEST(Reduce, SoftmaxOfManyColumns) {
  CheckOp({.name = "softmax_of_many_columns",
           .op = [](const Tensors& x) { return Scale(SoftmaxLast(x[0]), 1000); },
           .shapes = {{{3, 1100}}, {{5, 1024}}},
           .activations = {0}});
}

TEST(Reduce, LargeLogitsStayFinite) {
  const Tensor x = Tensor::FromVector<float>({1e4f, 0, -1e4f});
  EXPECT_EQ(SoftmaxLast(x).ToVector<float>(), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(LogSoftmaxLast(x).ToVector<float>(), (std::vector<float>{0, -1e4f, -2e4f}));
}

TEST(Reduce, SumToShapeOnDevice) {
  DeviceBackend* backend = FindDeviceBackend();
  if (CheckedDevice().is_cpu() || backend == nullptr || backend->Count() == 0) {
    GTEST_SKIP() << "no device";
  }
  const std::vector<std::pair<Shape, Shape>> cases = {{{5, 3}, {3}},
                                                      {{5, 3}, {5, 1}},
                                                      {{5, 3}, {}},
                                                      {{2, 3, 4, 5}, {3, 1, 5}},
                                                      {{2, 3, 4, 5}, {2, 1, 4, 1}},
                                                      {{700, 33}, {33}},
                                                      {{3, 9000}, {3, 1}},
                                                      {{200, 2, 70}, {2, 1}},
                                                      {{0, 3}, {3}},
                                                      {{3, 0}, {3, 1}},
                                                      {{1, 1}, {}},
                                                      {{0, 3}, {0, 1}}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [from, to] : cases) {
      SCOPED_TRACE(ToString(from) + " to " + ToString(to) + " in " + ToString(dtype));
      std::vector<float> values(static_cast<size_t>(NumElements(from)));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(static_cast<int>(i * 7 % 19) - 8) / 8;
      }
      const Tensor x = Tensor::FromVector(values, from);
      const Tensor expected = SumToShape(x, to).To(dtype);  // exact in float32
      const Tensor sums = SumToShape(x.To(dtype).To(CheckedDevice()), to);
      EXPECT_EQ(sums.shape(), to);
      EXPECT_EQ(sums.To(Device{}).To(DType::kF32).ToVector<float>(),
                expected.To(DType::kF32).ToVector<float>());
    }
  }
}

TEST(Reduce, Empty) {
  EXPECT_EQ(Sum(Tensor::Zeros({0})).Item(), 0);
  EXPECT_TRUE(std::isnan(Mean(Tensor::Zeros({0})).Item()));
  EXPECT_EQ(SumLast(Tensor::Zeros({2, 0})).ToVector<float>(), (std::vector<float>{0, 0}));
  EXPECT_THROW(SumLast(Tensor::Zeros({})), Error);
}

}  // namespace
}  // namespace lathe
