#include "lathe/core/ops/shaping/view.h"

#include <gtest/gtest.h>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(View, Op) {
  CheckOp({.name = "squeeze",
           .op = [](const Tensors& x) { return Squeeze(x[0]); },
           .shapes = {{{1, 3, 1}}, {{1, 1}}, {{0, 1}}, {{2}}},
           .activations = {0}});
  CheckOp({.name = "squeeze_dim",
           .op = [](const Tensors& x) { return Squeeze(x[0], -2); },
           .shapes = {{{2, 1, 3}}, {{4, 3}}},
           .activations = {0}});
  CheckOp({.name = "unsqueeze",
           .op = [](const Tensors& x) { return Unsqueeze(x[0], 1); },
           .shapes = {{{2, 3}}, {{4}}},
           .activations = {0}});
  CheckOp({.name = "flatten",
           .op = [](const Tensors& x) { return Flatten(x[0], 1); },
           .shapes = {{{2, 3, 4}}, {{5, 2}}, {{0, 2, 2}}},
           .activations = {0}});
}

// Adding zeros broadcasts, too.
Tensor ExpandComposed(const Tensor& x, const Shape& shape) {
  return Add(x, Tensor::Zeros(shape, x.dtype(), x.device()));
}

TEST(View, Expand) {
  const auto check = [](const char* name, const Shape& to, const std::vector<Shape>& from) {
    std::vector<std::vector<Shape>> shapes;
    for (const Shape& shape : from) shapes.push_back({shape});
    CheckOp({.name = name,
             .op = [&](const Tensors& x) { return Expand(x[0], to); },
             .composed = [&](const Tensors& x) { return ExpandComposed(x[0], to); },
             .shapes = shapes,
             .activations = {0}});
  };
  check("expand", {2, 3, 4}, {{3, 4}, {1, 4}, {3, 1}, {2, 3, 4}, {2, 1, 1}, {1}, {}});
  check("expand_none", {2, 0, 4}, {{1, 4}, {}, {2, 0, 1}});
  check("expand_many", {40, 50, 30}, {{50, 1}, {40, 1, 30}, {30}, {}});
}

TEST(View, Shapes) {
  const Tensor x = Tensor::Zeros({2, 1, 3, 1}, DType::kI64);
  EXPECT_EQ(Squeeze(x).shape(), (Shape{2, 3}));
  EXPECT_EQ(Squeeze(x, 1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(Squeeze(x, 0).shape(), x.shape());
  EXPECT_EQ(Unsqueeze(x, -1).shape(), (Shape{2, 1, 3, 1, 1}));
  EXPECT_EQ(Unsqueeze(x, 0).shape(), (Shape{1, 2, 1, 3, 1}));
  EXPECT_EQ(Unsqueeze(x, 4).shape(), (Shape{2, 1, 3, 1, 1}));
  EXPECT_EQ(Flatten(x).shape(), (Shape{6}));
  EXPECT_EQ(Flatten(x, -3, -2).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(Flatten(Tensor::Zeros({})).shape(), (Shape{1}));
  EXPECT_EQ(Expand(x, {5, -1, 4, -1, 7}).shape(), (Shape{5, 2, 4, 3, 7}));
  EXPECT_EQ(Flatten(x).raw_data(), x.raw_data());
}

TEST(View, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  const auto message = [](const auto& run) {
    try {
      run();
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { Squeeze(x, 2); }), "[squeeze] shape [2, 3] has no dimension 2");
  EXPECT_EQ(message([&] { Unsqueeze(x, 3); }), "[unsqueeze] shape [2, 3] can't get a dimension 3");
  EXPECT_EQ(message([&] { Flatten(x, 1, 0); }),
            "[flatten] start_dim 1 lies behind end_dim 0 in shape [2, 3]");
  EXPECT_EQ(message([&] {
              Expand(x, {2, 4});
            }),
            "[expand] shape [2, 3] can't be expanded to [2, 4]");
  EXPECT_EQ(message([&] { Expand(x, {3}); }), "[expand] shape [2, 3] can't be expanded to [3]");
  EXPECT_EQ(message([&] {
              Expand(x, {-1, 2, 3});
            }),
            "[expand] shape [2, 3] can't be expanded to [-1, 2, 3]");
}

}  // namespace
}  // namespace lathe
