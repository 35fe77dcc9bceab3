#include "lathe/core/ops/operators/operators.h"

#include <gtest/gtest.h>

#include <vector>

#include "lathe/core/ops/elementwise.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Operators, Op) {
  CheckOp({.name = "operators",
           .op = [](const Tensors& x) { return (x[0] + x[1] * 2) / (3 - -x[0]) - 1 / (x[1] + 1); },
           .composed =
               [](const Tensors& x) {
                 return Sub(Div(Add(x[0], Scale(x[1], 2)), AddScalar(x[0], 3)),
                            Exp(Neg(Log(AddScalar(x[1], 1)))));
               },
           .shapes = {{{3, 4}, {4}}, {{2, 3, 4}, {}}, {{0, 3}, {3}}},
           .low = 0.5,
           .activations = {0, 1}});
}

TEST(Operators, Values) {
  const Tensor a = Tensor::FromVector<float>({1, 2, 4}), b = Tensor::FromVector<float>({4, 2, 8});
  using Values = std::vector<float>;
  EXPECT_EQ((a + b).ToVector<float>(), (Values{5, 4, 12}));
  EXPECT_EQ((a - b).ToVector<float>(), (Values{-3, 0, -4}));
  EXPECT_EQ((a * b).ToVector<float>(), (Values{4, 4, 32}));
  EXPECT_EQ((a / b).ToVector<float>(), (Values{0.25, 1, 0.5}));
  EXPECT_EQ((a + 1).ToVector<float>(), (Values{2, 3, 5}));
  EXPECT_EQ((a - 1).ToVector<float>(), (Values{0, 1, 3}));
  EXPECT_EQ((a * 3).ToVector<float>(), (Values{3, 6, 12}));
  EXPECT_EQ((a / 3).ToVector<float>(), (Values{1 / 3.0f, 2 / 3.0f, 4 / 3.0f}));
  EXPECT_EQ((1 + a).ToVector<float>(), (Values{2, 3, 5}));
  EXPECT_EQ((1 - a).ToVector<float>(), (Values{0, -1, -3}));
  EXPECT_EQ((3 * a).ToVector<float>(), (Values{3, 6, 12}));
  EXPECT_EQ((3 / a).ToVector<float>(), (Values{3, 1.5, 0.75}));
  EXPECT_EQ((-a).ToVector<float>(), (Values{-1, -2, -4}));
}

}  // namespace
}  // namespace lathe
