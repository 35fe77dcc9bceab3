#include "lathe/core/ops/grouped/grouped_linear.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/unfold/unfold.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(GroupedLinear, Op) {
  for (const int64_t groups : {1, 2, 5}) {
    const int64_t g = groups;
    for (const bool has_bias : {true, false}) {
      const auto cases = [=](std::vector<std::vector<Shape>> shapes) {
        if (has_bias) return shapes;
        for (std::vector<Shape>& inputs : shapes) inputs.pop_back();
        return shapes;
      };
      const auto layer = [=](const Tensors& x, GroupedWeight layout = GroupedWeight::kOutIn) {
        return GroupedLayer{x[1], has_bias ? x[2] : Tensor(), g, layout};
      };
      CheckOp({.name = "grouped_linear_out_in",
               .op = [=](const Tensors& x) { return GroupedLinear(x[0], layer(x)); },
               .composed = [=](const Tensors& x) { return GroupedLinearComposed(x[0], layer(x)); },
               .shapes = cases({{{3, g * 2}, {g * 4, 2}, {g * 4}},
                                {{1, g}, {g, 1, 1}, {g, 1}},
                                {{0, g * 3}, {g * 2, 3}, {g * 2}},
                                {{33, g * 19}, {g * 7, 19, 1}, {g * 7}},
                                {{130, g * 5}, {g * 24, 5}, {g * 24}}}),
               .tolerance = 5e-5,
               .grad_tolerance = 5e-4,
               .activations = {0}});
      constexpr GroupedWeight kInOut = GroupedWeight::kInOut;
      CheckOp({.name = "grouped_linear_in_out",
               .op = [=](const Tensors& x) { return GroupedLinear(x[0], layer(x, kInOut)); },
               .composed =
                   [=](const Tensors& x) { return GroupedLinearComposed(x[0], layer(x, kInOut)); },
               .shapes = cases({{{3, g * 2}, {g, 2, 4}, {g * 4}},
                                {{0, g * 3}, {g, 3, 2}, {g * 2}},
                                {{33, g * 19}, {g, 19, 7}, {g * 7}}}),
               .tolerance = 5e-5,
               .grad_tolerance = 5e-4,
               .activations = {0}});
    }
  }
}

// Layers of 2 groups, of one group and, with the other layout, of 4 groups.
TEST(GroupedLinear, Stack) {
  const auto layers = [](const Tensors& x) {
    return std::vector<GroupedLayer>{
        {x[1], x[2], 2}, {x[3], Tensor(), 1}, {x[4], x[5], 4, GroupedWeight::kInOut}};
  };
  CheckOp({.name = "grouped_linear_stack",
           .op = [=](const Tensors& x) { return GroupedLinearStack(x[0], layers(x)); },
           .composed =
               [=](const Tensors& x) {
                 std::vector<Tensor> parts;
                 for (const GroupedLayer& layer : layers(x)) {
                   parts.push_back(GroupedLinearComposed(x[0], layer));
                 }
                 return ConcatRows(parts);
               },
           .shapes = {{{3, 8}, {12, 4}, {12}, {12, 8, 1}, {4, 2, 3}, {12}},
                      {{0, 4}, {4, 2}, {4}, {4, 4}, {4, 1, 1}, {4}},
                      {{21, 16}, {32, 8}, {32}, {32, 16}, {4, 4, 8}, {32}}},
           .tolerance = 5e-5,
           .grad_tolerance = 5e-4,
           .activations = {0}});
}

// Group 0 reads columns 0 and 1, group 1 columns 2 and 3.
TEST(GroupedLinear, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {1, 4});
  const Tensor weight = Tensor::FromVector<float>({1, 10, 100, 1000}, {2, 2, 1});
  const Tensor bias = Tensor::FromVector<float>({0.5f, 0.25f}, {2});
  EXPECT_EQ(GroupedLinear(x, {weight, bias, 2}).ToVector<float>(),
            (std::vector<float>{21.5f, 4300.25f}));
  const Tensor in_out = Tensor::FromVector<float>({1, 10, 100, 1000}, {2, 2, 1});
  EXPECT_EQ(GroupedLinear(x, {in_out, bias, 2, GroupedWeight::kInOut}).ToVector<float>(),
            (std::vector<float>{21.5f, 4300.25f}));
}

// One group is a linear layer.
TEST(GroupedLinear, OneGroupIsLinear) {
  const Tensor x = Tensor::FromVector<float>({1, -2, 3, 4, 5, -6}, {2, 3});
  const Tensor weight = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6, 7, 8, -9, 1, 2, 3}, {4, 3});
  const Tensor bias = Tensor::FromVector<float>({1, 2, 3, 4}, {4});
  EXPECT_EQ(GroupedLinear(x, {weight, bias}).ToVector<float>(),
            Linear(x, weight, bias).ToVector<float>());
}

// A convolution of three taps, whose groups are those of Conv1d: y_2 is that of a kernel (1, 10,
// 100) over column 1 alone.
TEST(GroupedLinear, IsAConvolutionOfUnfoldedRows) {
  const Tensor x = Tensor::FromVector<float>({9, 1, 9, 2, 9, 3, 9, 4}, {4, 2});
  const Tensor weight = Tensor::FromVector<float>({0, 1, 0, 1, 10, 100}, {2, 1, 3});
  const Tensor unfolded = PackedUnfold(x, Packed({0, 3, 4}), 3, UnfoldOrder::kColumns);
  EXPECT_EQ(GroupedLinear(unfolded, {weight, Tensor(), 2}).ToVector<float>(),
            (std::vector<float>{9, 210, 9, 321, 9, 32, 9, 40}));
}

TEST(GroupedLinear, Errors) {
  const auto error = [](const Shape& x, const Shape& weight, const Shape& bias, int64_t groups,
                        GroupedWeight layout = GroupedWeight::kOutIn) {
    try {
      GroupedLinear(Tensor::Zeros(x), {Tensor::Zeros(weight), Tensor::Zeros(bias), groups, layout});
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({5, 4}, {6, 2}, {6}, 2), "");
  EXPECT_EQ(error({4}, {6, 2}, {6}, 2), "[grouped_linear] x must have shape [N, in] but has [4]");
  EXPECT_EQ(error({5, 4}, {6, 2}, {6}, 3),
            "[grouped_linear] the columns of x [5, 4] don't make groups: 3");
  EXPECT_EQ(error({5, 4}, {6, 2}, {6}, 0),
            "[grouped_linear] the columns of x [5, 4] don't make groups: 0");
  EXPECT_EQ(error({5, 4}, {5, 2}, {5}, 2),
            "[grouped_linear] weight must have 2 times as many rows as a group's outputs, of 2 "
            "elements each, but has shape [5, 2]");
  EXPECT_EQ(error({5, 4}, {6, 2, 2}, {6}, 2),
            "[grouped_linear] weight must have 2 times as many rows as a group's outputs, of 2 "
            "elements each, but has shape [6, 2, 2]");
  EXPECT_EQ(error({5, 4}, {2, 3, 3}, {6}, 2, GroupedWeight::kInOut),
            "[grouped_linear] weight must have shape [2, 2, out] but has [2, 3, 3]");
  EXPECT_EQ(error({5, 4}, {6, 2}, {5}, 2),
            "[grouped_linear] bias must have 6 elements but has shape [5]");
  const Tensor x = Tensor::Zeros({2, 4});
  EXPECT_THROW(GroupedLinear(x, {Tensor::Zeros({2, 2}, DType::kF64), Tensor(), 2}), Error);
  EXPECT_THROW(GroupedLinearStack(x, {}), Error);
  try {
    GroupedLinearStack(x, {{Tensor::Zeros({6, 4})}, {Tensor::Zeros({8, 2}), Tensor(), 2}});
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "[grouped_linear] layers must have 6 columns each but one has 8");
  }
}

}  // namespace
}  // namespace lathe
