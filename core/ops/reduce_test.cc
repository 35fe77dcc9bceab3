#include "lathe/core/ops/reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/ops/elementwise.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

const std::vector<std::vector<Shape>> kShapes = {
    {{5}}, {{2, 3, 4}}, {{0, 3}}, {{3, 1}}, {{90, 200}}};

TEST(Reduce, Sums) {
  CheckOp({.name = "sum", .op = [](const Tensors& x) { return Sum(x[0]); }, .shapes = kShapes});
  CheckOp({.name = "sum_of_scalar",
           .op = [](const Tensors& x) { return Sum(x[0]); },
           .shapes = {{{}}}});
  CheckOp({.name = "mean", .op = [](const Tensors& x) { return Mean(x[0]); }, .shapes = kShapes});
  CheckOp({.name = "sum_last",
           .op = [](const Tensors& x) { return SumLast(x[0]); },
           .shapes = kShapes});
  CheckOp({.name = "mean_last",
           .op = [](const Tensors& x) { return MeanLast(x[0]); },
           .shapes = kShapes});
}

TEST(Reduce, Softmax) {
  CheckOp({.name = "softmax",
           .op = [](const Tensors& x) { return SoftmaxLast(x[0]); },
           .composed = [](const Tensors& x) { return Div(Exp(x[0]), SumLast(Exp(x[0]))); },
           .shapes = kShapes});
  CheckOp({.name = "log_softmax",
           .op = [](const Tensors& x) { return LogSoftmaxLast(x[0]); },
           .composed = [](const Tensors& x) { return Sub(x[0], Log(SumLast(Exp(x[0])))); },
           .shapes = kShapes});
}

TEST(Reduce, LargeLogitsStayFinite) {
  const Tensor x = Tensor::FromVector<float>({1e4f, 0, -1e4f});
  EXPECT_EQ(SoftmaxLast(x).ToVector<float>(), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(LogSoftmaxLast(x).ToVector<float>(), (std::vector<float>{0, -1e4f, -2e4f}));
}

TEST(Reduce, Empty) {
  EXPECT_EQ(Sum(Tensor::Zeros({0})).Item(), 0);
  EXPECT_TRUE(std::isnan(Mean(Tensor::Zeros({0})).Item()));
  EXPECT_EQ(SumLast(Tensor::Zeros({2, 0})).ToVector<float>(), (std::vector<float>{0, 0}));
  EXPECT_THROW(SumLast(Tensor::Zeros({})), Error);
}

}  // namespace
}  // namespace lathe
