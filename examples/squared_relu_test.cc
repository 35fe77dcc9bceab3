#include "lathe/examples/squared_relu.h"

#include <gtest/gtest.h>

#include "lathe/core/ops/elementwise.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(SquaredReluTest, Op) {
  CheckOp({.name = "squared_relu",
           .op = [](const Tensors& x) { return SquaredRelu(x[0]); },
           .composed = [](const Tensors& x) { return Mul(Relu(x[0]), Relu(x[0])); },
           .shapes = {{{0}}, {{1}}, {{3, 5}}, {{7, 300}}},
           .float64 = false});
}

TEST(SquaredReluTest, RefusesOtherTypes) {
  try {
    SquaredRelu(Tensor::Zeros({2}, DType::kI64));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "[squared_relu] x must be float32 but is int64");
  }
}

}  // namespace
}  // namespace lathe
