#include "lathe/core/ops/convolution/packed_convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// A weight that meets only rows outside of a sequence is not read, so its NaN reaches nothing. The
// composed formula multiplies it by 0. Some shapes have more rows than the sequences, and more
// columns than a block has threads or a register has elements.
TEST(PackedConvolution, Depthwise) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (const int64_t taps : {1, 2, 3, 4, 9, 30}) {
    CheckOp(
        {.name = "depthwise_convolution",
         .op = [=](const Tensors& x) { return DepthwiseConvolution(x[0], x[1], At(x[0], packed)); },
         .composed =
             [=](const Tensors& x) { return DepthwiseConvolutionComposed(x[0], x[1], packed); },
         .shapes = {{{9, 1}, {1, taps}},
                    {{9, 5}, {5, 1, taps}},
                    {{9, 0}, {0, taps}},
                    {{11, 4}, {4, 1, taps}},
                    {{9, 300}, {300, taps}}},
         .tolerance = 5e-5,
         .grad_tolerance = 5e-4,
         .nan_check = false,
         .activations = {0}});
  }
}

TEST(PackedConvolution, Dynamic) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (const bool first : {false, true}) {
    for (const int64_t taps : {1, 2, 3, 4, 9, 30}) {
      for (const int64_t heads : {1, 2, 3}) {
        const int64_t h = heads;
        const auto shapes = [=](int64_t rows, int64_t width) {
          return std::vector<Shape>{{rows, h * width}, {first ? 3 : rows, h * taps}};
        };
        CheckOp({.name = "dynamic_convolution",
                 .op =
                     [=](const Tensors& x) {
                       return DynamicConvolution(x[0], x[1], At(x[0], packed),
                                                 {.heads = h, .first_rows_only = first});
                     },
                 .composed =
                     [=](const Tensors& x) {
                       return DynamicConvolutionComposed(x[0], x[1], packed,
                                                         {.heads = h, .first_rows_only = first});
                     },
                 .shapes = {shapes(9, 1), shapes(9, 7), shapes(11, 4), shapes(9, 40)},
                 .tolerance = 5e-5,
                 .grad_tolerance = 5e-4,
                 .nan_check = false,
                 .activations = {0}});
      }
    }
  }
}

Tensor Waves(const Shape& shape, float step) {
  std::vector<float> values(static_cast<size_t>(NumElements(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * step);
  return Tensor::FromVector(values, shape);
}

// More rows than a chunk of the weights' gradient has, and than a grid has blocks.
TEST(PackedConvolution, ManySequences) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 400; ++i) lengths.push_back(1 + i * i % 31);
  const PackedSequences packed = Packed(WithLengths(lengths));
  const int64_t tokens = packed.cu_seqlens.ToVector<int32_t>().back();
  ASSERT_GT(tokens, 4096);
  const std::vector<Tensor> inputs = {Waves({tokens, 6}, 1), Waves({6, 5}, 2),
                                      Waves({tokens, 10}, 3)};
  const auto run = [&](Device device, bool composed) {
    std::vector<Tensor> x;
    for (const Tensor& input : inputs) x.push_back(input.To(device).SetRequiresGrad(true));
    const PackedSequences there = At(x[0], packed);
    const Tensor y =
        composed ? DynamicConvolutionComposed(DepthwiseConvolutionComposed(x[0], x[1], there), x[2],
                                              there, {.heads = 2})
                 : DynamicConvolution(DepthwiseConvolution(x[0], x[1], there), x[2], there,
                                      {.heads = 2});
    Backward(y, Waves({tokens, 6}, 5).To(device));
    std::vector<Tensor> results = {y.Detach()};
    for (const Tensor& input : x) results.push_back(input.grad());
    return results;
  };
  const std::vector<Tensor> actual = run(CheckedDevice(), false), expected = run(Device{}, true);
  for (size_t i = 0; i < actual.size(); ++i) {
    const std::vector<float> a = actual[i].To(Device{}).ToVector<float>();
    const std::vector<float> e = expected[i].ToVector<float>();
    ASSERT_EQ(a.size(), e.size());
    for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], e[k], 2e-3) << i << " " << k;
  }
}

TEST(PackedConvolution, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {6, 1});
  const PackedSequences packed = Packed({0, 2, 5});  // the last row is surplus
  const Tensor weight = Tensor::FromVector<float>({1, 10, 100}, {1, 1, 3});
  EXPECT_EQ(DepthwiseConvolution(x, weight, packed).ToVector<float>(),
            (std::vector<float>{210, 21, 430, 543, 54, 0}));
  const Tensor first = Tensor::FromVector<float>({1, 10, 100, 7, 1, 2}, {2, 3});
  EXPECT_EQ(DynamicConvolution(x, first, packed, {.first_rows_only = true}).ToVector<float>(),
            (std::vector<float>{210, 11}));
}

// A NaN stays in its own sequence, and one in a surplus row reaches nothing.
TEST(PackedConvolution, SequencesAreSeparate) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::FromVector<float>({1, 2, nan, 4, nan}, {5, 1});
  const PackedSequences packed = Packed({0, 2, 4});
  const std::vector<float> y =
      DepthwiseConvolution(x, Tensor::Full({1, 5}, 1), packed).ToVector<float>();
  const std::vector<float> z =
      DynamicConvolution(x, Tensor::Full({5, 5}, 1), packed, {}).ToVector<float>();
  for (size_t row = 0; row < 5; ++row) {
    EXPECT_EQ(std::isnan(y[row]), row == 2 || row == 3) << row;
    EXPECT_EQ(std::isnan(z[row]), row == 2 || row == 3) << row;
  }
}

TEST(PackedConvolution, Errors) {
  const auto error = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  const auto depthwise = [&](const Shape& x, const Shape& w, const std::vector<int32_t>& cu) {
    return error([&] { DepthwiseConvolution(Tensor::Zeros(x), Tensor::Zeros(w), Packed(cu)); });
  };
  const auto dynamic = [&](const Shape& x, const Shape& w, int64_t heads, bool first = false) {
    return error([&] {
      DynamicConvolution(Tensor::Zeros(x), Tensor::Zeros(w), Packed({0, 3}),
                         {.heads = heads, .first_rows_only = first});
    });
  };
  EXPECT_EQ(depthwise({4, 2}, {2, 3}, {0, 3}), "");
  const std::string weight =
      "[depthwise_convolution] weight must have shape [H, taps] or [H, 1, taps] for x ";
  EXPECT_EQ(depthwise({4, 2}, {3, 3}, {0, 3}), weight + "[4, 2] but has [3, 3]");
  EXPECT_EQ(depthwise({4, 2}, {2, 2, 3}, {0, 3}), weight + "[4, 2] but has [2, 2, 3]");
  EXPECT_EQ(depthwise({4, 2}, {2, 0}, {0, 3}), weight + "[4, 2] but has [2, 0]");
  EXPECT_EQ(depthwise({4}, {2, 3}, {0, 3}), weight + "[4] but has [2, 3]");
  EXPECT_EQ(depthwise({4, 2}, {2, 3}, {0, 5}),
            "[depthwise_convolution] the sequences have 5 rows but x has shape [4, 2]");
  EXPECT_EQ(dynamic({4, 2}, {4, 6}, 2), "");
  EXPECT_EQ(dynamic({4, 2}, {1, 6}, 2, true), "");
  EXPECT_EQ(dynamic({4, 2}, {4, 6}, 4),
            "[dynamic_convolution] the columns of x [4, 2] don't make heads: 4");
  EXPECT_EQ(dynamic({4, 2}, {4, 6}, 0),
            "[dynamic_convolution] the columns of x [4, 2] don't make heads: 0");
  EXPECT_EQ(dynamic({4, 2}, {3, 6}, 2),
            "[dynamic_convolution] kernels must have shape [4, 2 * taps] but have [3, 6]");
  EXPECT_EQ(dynamic({4, 2}, {4, 5}, 2),
            "[dynamic_convolution] kernels must have shape [4, 2 * taps] but have [4, 5]");
  EXPECT_EQ(dynamic({4, 2}, {4, 6}, 2, true),
            "[dynamic_convolution] kernels must have shape [1, 2 * taps] but have [4, 6]");
  EXPECT_EQ(error([] {
              DepthwiseConvolution(Tensor::Zeros({4, 2}), Tensor::Zeros({2, 3}, DType::kF64),
                                   Packed({0, 3}));
            }),
            "[depthwise_convolution] weights must be float32 for float32 x but are float64");
}

}  // namespace
}  // namespace lathe
