#include "lathe/nn/conv1d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/core/autograd.h"

namespace lathe {
namespace {

TEST(Conv1d, NamesShapesAndBounds) {
  nn::Conv1d conv(8, 6, 3, {.padding = 1, .groups = 2});
  conv.Initialize(7);
  const std::vector<Parameter> parameters = conv.Parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].name, "weight");
  EXPECT_EQ(parameters[0].tensor.shape(), (Shape{6, 4, 3}));
  EXPECT_EQ(parameters[1].name, "bias");
  EXPECT_EQ(parameters[1].tensor.shape(), (Shape{6}));
  EXPECT_FALSE(parameters[1].decays);
  const float bound = 1 / std::sqrt(12.0f);
  for (const Parameter& parameter : parameters) {
    const std::vector<float> values = parameter.tensor.ToVector<float>();
    const float largest = std::fabs(
        *std::ranges::max_element(values, {}, [](float value) { return std::fabs(value); }));
    EXPECT_LE(largest, bound);
    EXPECT_GT(largest, bound / 2);
  }
  EXPECT_EQ(nn::Conv1d(8, 6, 3, {}, /*with_bias=*/false).Parameters().size(), 1u);
}

// Packed and padded inputs of one sequence give the same, and train all parameters.
TEST(Conv1d, PackedAndPadded) {
  nn::Conv1d conv(1, 2, 3, {.padding = 1});
  conv.Initialize(7);
  const std::vector<float> row = {1, -2, 3, 0.5};
  const Tensor padded = conv.Forward(Tensor::FromVector(row, {1, 1, 4}));
  PackedSequences sequences;
  sequences.cu_seqlens = Tensor::FromVector<int32_t>({0, 4});
  const Tensor packed = conv.Forward(Tensor::FromVector(row, {4, 1}), sequences);
  for (int64_t l = 0; l < 4; ++l) {
    for (int64_t o = 0; o < 2; ++o)
      EXPECT_NEAR(padded.data<float>()[o * 4 + l], packed.data<float>()[l * 2 + o], 1e-6);
  }
  Backward(packed, Tensor::Full(packed.shape(), 1));
  EXPECT_EQ(conv.bias.grad().ToVector<float>(), (std::vector<float>{4, 4}));
  EXPECT_NEAR(conv.weight.grad().ToVector<float>()[0], 2, 1e-6);  // the first tap misses the end
}

TEST(Conv1d, Errors) {
  EXPECT_THROW(nn::Conv1d(3, 4, 3, {.groups = 2}), Error);
  EXPECT_THROW(nn::Conv1d(3, 4, 0), Error);
  nn::Conv1d conv(1, 2, 3);
  conv.Initialize(7);
  PackedSequences sequences;
  sequences.cu_seqlens = Tensor::FromVector<int32_t>({0, 4});
  EXPECT_THROW(conv.Forward(Tensor::Zeros({4, 1}), sequences), Error);
}

}  // namespace
}  // namespace lathe
