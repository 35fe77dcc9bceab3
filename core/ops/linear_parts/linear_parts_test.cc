#include "lathe/core/ops/linear_parts/linear_parts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// All outputs, those at either end, and those in between; one part and several; with and without a
// bias.
TEST(LinearParts, Op) {
  const std::vector<LinearPartsOptions> cases = {
      {.parts = 3},
      {.parts = 1},
      {.begin = 4},
      {.end = 8, .parts = 2},
      {.begin = 4, .parts = 2},
      {.begin = 4, .end = 8, .parts = 4},
      {.begin = 5, .end = 5},
  };
  for (const LinearPartsOptions& options : cases) {
    for (const bool has_bias : {true, false}) {
      std::vector<Shape> small = {{5, 7}, {12, 7}}, empty = {{0, 3}, {12, 3}},
                         large = {{70, 40}, {12, 40}};
      if (has_bias) {
        for (std::vector<Shape>* shapes : {&small, &empty, &large}) shapes->push_back({12});
      }
      const auto bias = [=](const Tensors& x) { return has_bias ? x[2] : Tensor(); };
      CheckOp(
          {.name = "linear_parts",
           .op = [=](const Tensors& x) { return LinearParts(x[0], x[1], bias(x), options); },
           .composed =
               [=](const Tensors& x) { return LinearPartsComposed(x[0], x[1], bias(x), options); },
           .shapes = {small, empty, large},
           .nan_check = options.begin != options.end,
           .activations = {0}});
    }
  }
}

// A stale gradient is overwritten by a call that reads the whole weight. Calls that read parts of
// it add to zeros.
TEST(LinearParts, StaleGradients) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  for (const bool whole : {true, false}) {
    Tensor weight = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2});
    Tensor bias = Tensor::FromVector<float>({1, 2, 3, 4});
    const auto run = [&] {
      if (whole) {
        Backward(LinearParts(x, weight, bias, {.parts = 2}), Tensor::Full({4, 2}, 1));
      } else {
        Backward(LinearParts(x, weight, bias, {.end = 1}), Tensor::Full({2, 1}, 1));
        Backward(LinearParts(x, weight, bias, {.begin = 1}), Tensor::Full({2, 3}, 1));
      }
    };
    weight.SetRequiresGrad(true).SetGrad(Tensor::Full({4, 2}, 77));
    bias.SetRequiresGrad(true).SetGrad(Tensor::Full({4}, 77));
    weight.impl()->mutable_gradient().is_stale = true;
    bias.impl()->mutable_gradient().is_stale = true;
    run();
    EXPECT_EQ(weight.grad().ToVector<float>(), (std::vector<float>{4, 6, 4, 6, 4, 6, 4, 6}));
    EXPECT_EQ(bias.grad().ToVector<float>(), (std::vector<float>{2, 2, 2, 2}));
    run();
    EXPECT_EQ(weight.grad().ToVector<float>(), (std::vector<float>{8, 12, 8, 12, 8, 12, 8, 12}));
    EXPECT_EQ(bias.grad().ToVector<float>(), (std::vector<float>{4, 4, 4, 4}));
  }
}

TEST(LinearParts, Errors) {
  const Tensor x = Tensor::Zeros({4, 2}), weight = Tensor::Zeros({6, 2});
  const auto error = [&](const Tensor& input, const Tensor& w, const Tensor& bias,
                         const LinearPartsOptions& options) {
    try {
      LinearParts(input, w, bias, options);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error(x, weight, {}, {.parts = 3}), "");
  EXPECT_EQ(error(Tensor::Zeros({4}), weight, {}, {}),
            "[linear_parts] x must have shape [N, in] but has [4]");
  EXPECT_EQ(error(x, Tensor::Zeros({6, 3}), {}, {}),
            "[linear_parts] x [4, 2] doesn't fit weight [6, 3]");
  EXPECT_EQ(error(x, Tensor::Zeros({6, 2}, DType::kF64), {}, {}),
            "[linear_parts] weight must be float32 for float32 x but is float64");
  EXPECT_EQ(error(x, weight, Tensor::Zeros({5}), {}),
            "[linear_parts] bias must have shape [6] but has [5]");
  EXPECT_EQ(error(x, weight, {}, {.begin = 2, .end = 7}),
            "[linear_parts] outputs 2 to 7 don't exist in a layer of 6");
  EXPECT_EQ(error(x, weight, {}, {.begin = 2, .parts = 3}),
            "[linear_parts] the 4 outputs can't be cut into 3 parts of one size");
}

}  // namespace
}  // namespace lathe
