#include "lathe/core/ops/math/reduce_dims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/permute.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Compares with the sums of SumLast over dimensions that are moved to the end.
TEST(ReduceDims, Dimensions) {
  const auto check = [](const char* name, const std::vector<int>& dims, bool keepdim,
                        const std::vector<int64_t>& order, int64_t kept,
                        const std::vector<std::vector<Shape>>& shapes) {
    const auto composed = [=](const Tensor& x, bool mean) {
      Shape rows, result;
      for (int64_t i = 0; i < kept; ++i) rows.push_back(x.dim(static_cast<int>(order[i])));
      for (int d = 0; d < x.ndim(); ++d) {
        const bool reduced = dims.empty() || std::ranges::count(dims, d) > 0 ||
                             std::ranges::count(dims, d - x.ndim()) > 0;
        if (!reduced) result.push_back(x.dim(d));
        if (reduced && keepdim) result.push_back(1);
      }
      rows.push_back(x.numel() / NumElements(rows));
      const Tensor moved = Reshape(Permute(x, order), rows);
      return Reshape(mean ? MeanLast(moved) : SumLast(moved), result);
    };
    for (const bool mean : {false, true}) {
      CheckOp({.name = std::string(mean ? "mean" : "sum") + name,
               .op =
                   [=](const Tensors& x) {
                     return mean ? Mean(x[0], dims, keepdim) : Sum(x[0], dims, keepdim);
                   },
               .composed = [=](const Tensors& x) { return composed(x[0], mean); },
               .shapes = shapes,
               .activations = {0}});
    }
  };
  check("_first", {0}, false, {1, 0}, 1, {{{4, 3}}, {{1, 5}}, {{33, 130}}, {{3000, 7}}});
  check("_first_of_three", {0}, true, {1, 2, 0}, 2, {{{4, 3, 2}}, {{5, 1, 3}}});
  check("_middle", {-2}, false, {0, 2, 1}, 2, {{{2, 3, 4}}, {{70, 9, 65}}, {{3, 1, 2}}});
  check("_apart", {2, 0}, true, {1, 0, 2}, 1, {{{3, 4, 5}}, {{40, 3, 50}}});
  check("_apart_twice", {0, -1}, false, {1, 2, 0, 3}, 2, {{{3, 2, 2, 5}}});
  check("_last", {1}, true, {0, 1}, 1, {{{4, 3}}, {{2, 20000}}, {{100, 70}}});
  check("_all", {}, false, {0, 1}, 0, {{{4, 3}}, {{300, 200}}});
}

TEST(ReduceDims, DimensionsOfFewElements) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Device device = CheckedDevice();
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3}).To(device);
  EXPECT_EQ(Sum(x, 0).ToVector<float>(), (std::vector<float>{5, 7, 9}));
  EXPECT_EQ(Mean(x, -1, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(Mean(x, {0, 1}).shape(), Shape{});
  EXPECT_EQ(Mean(x, {}).Item(), 3.5);
  EXPECT_EQ(Mean(x, {1, 0}, true).shape(), (Shape{1, 1}));
  const Tensor none = Tensor::Zeros({0, 3}, DType::kF32, device);
  EXPECT_EQ(Sum(none, 0).ToVector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(Sum(none, 1).shape(), Shape{0});
  for (const float mean : Mean(none, 0).ToVector<float>()) EXPECT_TRUE(std::isnan(mean));
  EXPECT_EQ(Sum(Tensor::Full({}, 7, DType::kF32, device), {}).Item(), 7);
  // The result is no view, also if nothing is added up.
  const Tensor row = Tensor::FromVector<float>({1, 2}, {1, 2}).To(device);
  Sum(row, 0).Fill(0);
  Mean(row, 0, true).Fill(0);
  EXPECT_EQ(row.ToVector<float>(), (std::vector<float>{1, 2}));
}

// Sums of many elements are exact but for roundings of the result.
TEST(ReduceDims, ColumnsOfManyRows) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  for (const int64_t columns : {3, 100}) {
    const Tensor x = Tensor::Full({100000, columns}, 0.1).To(CheckedDevice());
    for (const float mean : Mean(x, 0).ToVector<float>()) ASSERT_FLOAT_EQ(mean, 0.1f);
    for (const float sum : Sum(x, 0).ToVector<float>()) ASSERT_FLOAT_EQ(sum, 1e5 * double{0.1f});
  }
  if (!HasCheckedDevice()) return;
  // The sum is not in float16's range, but the mean is.
  const Tensor half = Tensor::Full({1000}, 100).To(DType::kF16).To(CheckedDevice());
  EXPECT_EQ(Mean(half, 0).Item(), 100);
}

TEST(ReduceDims, ErrorsOfDimensions) {
  const Tensor x = Tensor::Zeros({2, 3});
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  EXPECT_EQ(message([&] { Sum(x, 2); }), "[sum] shape [2, 3] has no dimension 2");
  EXPECT_EQ(message([&] { Mean(x, {0, -2}); }), "[mean] dimension 0 is named twice");
  EXPECT_EQ(message([&] { Softmax(x, -3); }), "[softmax] shape [2, 3] has no dimension -3");
  EXPECT_THROW(Sum(Tensor::Zeros({2, 3}, DType::kI64), 0), Error);
}

TEST(ReduceDims, SoftmaxOfAnyDimension) {
  CheckOp({.name = "softmax_of_first",
           .op = [](const Tensors& x) { return Softmax(x[0], 0); },
           .composed = [](const Tensors& x) { return Div(Exp(x[0]), Sum(Exp(x[0]), 0, true)); },
           .shapes = {{{5}}, {{4, 3}}, {{2, 3, 4}}},
           .activations = {0}});
  CheckOp({.name = "log_softmax_of_second",
           .op = [](const Tensors& x) { return LogSoftmax(x[0], 1); },
           .composed = [](const Tensors& x) { return Sub(x[0], Log(Sum(Exp(x[0]), 1, true))); },
           .shapes = {{{4, 3}}, {{2, 3, 4}}},
           .activations = {0}});
}

}  // namespace
}  // namespace lathe
