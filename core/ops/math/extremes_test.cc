#include "lathe/core/ops/math/extremes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

const float kNaN = std::numeric_limits<float>::quiet_NaN();

// Dimensions at the end and before it, with fewer and more columns than a warp has threads, and
// more elements than a block has.
TEST(Extremes, Op) {
  for (const bool keepdim : {false, true}) {
    CheckOp({.name = "max_last",
             .op = [=](const Tensors& x) { return Max(x[0], -1, keepdim).values; },
             .shapes = {{{5}}, {{3, 1}}, {{4, 37}}, {{2, 3, 700}}, {{0, 3}}},
             .activations = {0}});
    CheckOp({.name = "min_middle",
             .op = [=](const Tensors& x) { return Min(x[0], 1, keepdim).values; },
             .shapes = {{{3, 4, 5}}, {{2, 9, 70}}, {{2, 3, 0}}, {{130, 3, 40}}},
             .activations = {0}});
  }
  CheckOp({.name = "topk",
           .op = [](const Tensors& x) { return TopK(x[0], 3).values; },
           .shapes = {{{3}}, {{4, 37}}, {{2, 3, 300}}, {{0, 3}}},
           .nan_check = false,  // a NaN moves the others
           .activations = {0}});
  CheckOp({.name = "topk_smallest",
           .op = [](const Tensors& x) { return TopK(x[0], 2, 0, false).values; },
           .shapes = {{{3}}, {{5, 37}}, {{9, 2, 3}}},
           .nan_check = false,
           .activations = {0}});
  CheckOp({.name = "max_all",
           .op = [](const Tensors& x) { return Max(x[0]); },
           .shapes = {{{}}, {{5}}, {{7, 300}}},
           .activations = {0}});
  CheckOp({.name = "amin",
           .op =
               [](const Tensors& x) {
                 return AMin(x[0], {0, -1});
               },
           .shapes = {{{3, 4}}, {{3, 4, 5}}, {{2, 3, 4, 40}}, {{1, 0, 1}}},
           .activations = {0}});
  CheckOp({.name = "amax",
           .op =
               [](const Tensors& x) {
                 return AMax(x[0], {0, 1}, /*keepdim=*/true);
               },
           .shapes = {{{3, 4}}, {{3, 4, 5}}, {{2, 3, 4, 40}}},
           .activations = {0}});
}

Tensor There(const std::vector<float>& values, const Shape& shape) {
  return Tensor::FromVector(values, shape).To(CheckedDevice());
}

// Expects equal numbers, NaN included.
void ExpectSame(const Tensor& actual, const std::vector<float>& expected) {
  const std::vector<float> values = actual.ToVector<float>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i])))
        << i << ": " << values[i] << ", expected " << expected[i];
  }
}

TEST(Extremes, TiesAndNaN) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Tensor x = There({1, 3, 3, 0, 0, 5, kNaN, 4, kNaN}, {3, 3}).SetRequiresGrad(true);
  const auto [values, indices] = Max(x, -1);
  ExpectSame(values, {3, 5, kNaN});
  EXPECT_EQ(indices.ToVector<int64_t>(), (std::vector<int64_t>{1, 2, 0}));
  EXPECT_EQ(ArgMax(x, 1, true).shape(), (Shape{3, 1}));
  EXPECT_EQ(ArgMin(x, 1).ToVector<int64_t>(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(ArgMin(x, 0).ToVector<int64_t>(), (std::vector<int64_t>{2, 1, 2}));
  EXPECT_EQ(ArgMax(x).ToVector<int64_t>(), (std::vector<int64_t>{6}));
  ExpectSame(Min(x, 1).values, {1, 0, kNaN});
  Backward(values, There({2, 4, 6}, {3}));
  ExpectSame(x.grad(), {0, 2, 0, 0, 0, 4, 6, 0, 0});

  const Tensor y = There({1, 3, 3, 3, kNaN, kNaN}, {2, 3}).SetRequiresGrad(true);
  Backward(AMax(y, {1}), There({2, 4}, {2}));
  ExpectSame(y.grad(), {0, 1, 1, 0, 2, 2});
  const auto top = TopK(y, 3);
  ExpectSame(top.values, {3, 3, 1, kNaN, kNaN, 3});
  EXPECT_EQ(top.indices.ToVector<int64_t>(), (std::vector<int64_t>{1, 2, 0, 1, 2, 0}));
  const auto bottom = TopK(y, 2, -1, /*largest=*/false);
  ExpectSame(bottom.values, {1, 3, 3, kNaN});
  EXPECT_EQ(bottom.indices.ToVector<int64_t>(), (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(TopK(y, 0, 0).values.shape(), (Shape{0, 3}));
}

// All elements that are equal to the maximum share its gradient, across dimensions that are no
// neighbours.
TEST(Extremes, GradientsAreShared) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Tensor x = There({7, 1, 7, 2, 0, 1, 7, 2}, {2, 2, 2}).SetRequiresGrad(true);
  const Tensor y = AMax(x, {0, 2});
  ExpectSame(y, {7, 7});
  Backward(y, There({3, 4}, {2}));
  ExpectSame(x.grad(), {3, 0, 2, 0, 0, 0, 2, 0});
}

TEST(Extremes, Errors) {
  const auto error = [](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_EQ(error([&] { Max(x, 2); }), "[max] shape [2, 3] has no dimension 2");
  EXPECT_EQ(error([&] { ArgMin(x, -3); }), "[argmin] shape [2, 3] has no dimension -3");
  EXPECT_EQ(error([&] { AMax(x, {0, -2}); }), "[amax] dimension 0 is named twice");
  EXPECT_EQ(error([&] {
              Min(Tensor::Zeros({2, 0}), 1);
            }),
            "[min] there are no elements to choose from in shape [2, 0]");
  EXPECT_EQ(error([&] { TopK(x, 4); }),
            "[topk] k must be at most 3, the size of dimension -1 of shape [2, 3], but is 4");
  EXPECT_EQ(error([&] { Max(Tensor::Zeros({2}, DType::kI64), 0); }),
            "[max] expected float32 or float64 but got int64");
}

}  // namespace
}  // namespace lathe
