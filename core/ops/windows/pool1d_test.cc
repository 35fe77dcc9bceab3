#include "lathe/core/ops/windows/pool1d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

const std::vector<std::vector<Shape>> kShapes = {
    {{1, 1, 4}}, {{2, 3, 7}}, {{0, 3, 7}}, {{2, 0, 7}}, {{3, 40, 200}}};

TEST(Pool1d, Max) {
  for (const MaxPool1dOptions options :
       {MaxPool1dOptions{.kernel_size = 2}, MaxPool1dOptions{.kernel_size = 3, .stride = 1},
        MaxPool1dOptions{.kernel_size = 3, .stride = 2, .padding = 1},
        MaxPool1dOptions{.kernel_size = 2, .stride = 1, .padding = 1, .dilation = 3},
        MaxPool1dOptions{.kernel_size = 1, .stride = 3}}) {
    CheckOp({.name = "max_pool1d",
             .op = [=](const Tensors& x) { return MaxPool1d(x[0], options); },
             .shapes = kShapes,
             .nan_check = options.stride <= options.kernel_size,  // else some elements are not read
             .activations = {0}});
  }
}

TEST(Pool1d, Avg) {
  for (const AvgPool1dOptions options :
       {AvgPool1dOptions{.kernel_size = 2}, AvgPool1dOptions{.kernel_size = 3, .stride = 1},
        AvgPool1dOptions{.kernel_size = 4, .stride = 3, .padding = 2},
        AvgPool1dOptions{
            .kernel_size = 3, .stride = 2, .padding = 1, .count_include_pad = false}}) {
    CheckOp({.name = "avg_pool1d",
             .op = [=](const Tensors& x) { return AvgPool1d(x[0], options); },
             .shapes = kShapes,
             .activations = {0}});
  }
}

// Every combination of options on lines that are shorter and longer than what a kernel computes at
// once, beside a plain loop. A window's last NaN is its maximum.
TEST(Pool1d, MaxOfEveryKindOfWindow) {
  for (const int64_t length : {1, 5, 33, 700}) {
    std::vector<float> x;
    for (int64_t i = 0; i < 2 * length; ++i) x.push_back(static_cast<float>(i * 37 % 23) - 11);
    for (size_t i = 20; i < x.size(); i += 61) x[i] = std::numeric_limits<float>::quiet_NaN();
    const Tensor lines = Tensor::FromVector(x, {1, 2, length});
    for (int option = 0; option < 5 * 3 * 3 * 2; ++option) {
      const MaxPool1dOptions o = {
          .kernel_size = option % 5 + 1,
          .stride = option / 5 % 3 + 1,
          .padding = std::min<int64_t>(option / 15 % 3, (option % 5 + 1) / 2),
          .dilation = option / 45 + 1};
      if (length + 2 * o.padding < o.dilation * (o.kernel_size - 1) + 1) continue;
      const Tensor y = MaxPool1d(lines, o);
      const std::vector<float> got = y.ToVector<float>();
      for (int64_t i = 0; i < y.numel(); ++i) {
        const int64_t line = i / y.dim(2), window = i % y.dim(2);
        float most = -std::numeric_limits<float>::infinity();
        for (int64_t t = 0; t < o.kernel_size; ++t) {
          const int64_t at = window * o.stride - o.padding + t * o.dilation;
          if (at < 0 || at >= length) continue;
          const float value = x[line * length + at];
          if (value > most || std::isnan(value)) most = value;
        }
        ASSERT_TRUE(got[i] == most || (std::isnan(got[i]) && std::isnan(most)))
            << "window " << i << " of length " << length << ", option " << option << ": " << got[i]
            << " instead of " << most;
      }
    }
  }
}

// The first of equal elements gets the gradient. A NaN is the maximum. A window of padding alone
// gives -inf and no gradient.
TEST(Pool1d, Values) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto there = [](const std::vector<float>& values) {
    return Tensor::FromVector(values, {1, 1, static_cast<int64_t>(values.size())})
        .To(CheckedDevice());
  };
  Tensor x = there({2, 2, 1, nan, 5}).SetRequiresGrad(true);
  const Tensor y = MaxPool1d(x, {.kernel_size = 2, .stride = 1});
  const std::vector<float> values = y.ToVector<float>();
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], 2);
  EXPECT_TRUE(std::isnan(values[2]) && std::isnan(values[3]));
  Backward(y, there({1, 10, 100, 1000}));
  EXPECT_EQ(x.grad().ToVector<float>(), (std::vector<float>{1, 10, 0, 1100, 0}));

  Tensor one = there({3}).SetRequiresGrad(true);
  const Tensor padded = MaxPool1d(one, {.kernel_size = 2, .padding = 1, .dilation = 2});
  EXPECT_EQ(padded.ToVector<float>(),
            (std::vector<float>{-std::numeric_limits<float>::infinity()}));
  Backward(padded, there({7}));
  EXPECT_EQ(one.grad().ToVector<float>(), (std::vector<float>{0}));

  const Tensor z = there({1, 2, 3});
  EXPECT_EQ(AvgPool1d(z, {.kernel_size = 2, .padding = 1}).ToVector<float>(),
            (std::vector<float>{0.5, 2.5}));
  EXPECT_EQ(
      AvgPool1d(z, {.kernel_size = 2, .padding = 1, .count_include_pad = false}).ToVector<float>(),
      (std::vector<float>{1, 2.5}));
}

TEST(Pool1d, Errors) {
  const auto error = [](const Shape& x, const MaxPool1dOptions& options) {
    try {
      MaxPool1d(Tensor::Zeros(x), options);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({2, 3}, {}), "[max_pool1d] x must have shape [B, C, L] but has [2, 3]");
  EXPECT_EQ(error({1, 2, 3}, {.kernel_size = 4}),
            "[max_pool1d] x of shape [1, 2, 3] has 3 elements along L with padding, fewer than the "
            "4 of a window");
  EXPECT_EQ(error({1, 2, 3}, {.kernel_size = 3, .padding = 2}),
            "[max_pool1d] padding must be at most half of kernel_size, 3, but is 2");
  EXPECT_EQ(error({1, 2, 0}, {.kernel_size = 2, .padding = 1}),
            "[max_pool1d] x of shape [1, 2, 0] has no elements along L");
  EXPECT_THROW(AvgPool1d(Tensor::Zeros({1, 2, 3}), {.kernel_size = 0}), Error);
}

}  // namespace
}  // namespace lathe
