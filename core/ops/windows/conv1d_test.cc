#include "lathe/core/ops/windows/conv1d.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/create/create.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/windows/unfold1d.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

void CheckConvolution(const Conv1dOptions& options, const std::vector<std::vector<Shape>>& shapes) {
  SCOPED_TRACE("stride " + std::to_string(options.stride) + ", padding " +
               std::to_string(options.padding) + ", dilation " + std::to_string(options.dilation) +
               ", groups " + std::to_string(options.groups));
  CheckOp({.name = "conv1d",
           .op = [=](const Tensors& x) { return Conv1d(x[0], x[1], x[2], options); },
           .composed = [=](const Tensors& x) { return Conv1dComposed(x[0], x[1], x[2], options); },
           .shapes = shapes,
           .tolerance = 5e-5,
           .grad_tolerance = 5e-4,
           .activations = {0}});
}

// One sample and many, shorter and longer than a chunk, and windows that begin or end in padding.
TEST(Conv1d, Op) {
  CheckConvolution({}, {{{1, 1, 1}, {1, 1, 1}, {1}},
                        {{2, 3, 7}, {4, 3, 3}, {4}},
                        {{0, 3, 7}, {4, 3, 3}, {4}},
                        {{45, 2, 30}, {3, 2, 4}, {3}},
                        {{2, 2, 700}, {3, 2, 5}, {3}}});
  CheckConvolution({.padding = 2}, {{{3, 2, 5}, {4, 2, 5}, {4}}, {{1, 2, 1}, {1, 2, 3}, {1}}});
  CheckConvolution({.stride = 2, .padding = 1, .dilation = 2},
                   {{{3, 4, 9}, {5, 4, 3}, {5}}, {{2, 1, 1100}, {2, 1, 2}, {2}}});
  CheckConvolution({.stride = 3, .padding = 4}, {{{2, 3, 10}, {2, 3, 4}, {2}}});
  CheckConvolution({.padding = 1, .groups = 2}, {{{3, 4, 9}, {6, 2, 3}, {6}}});
  CheckConvolution({.groups = 4}, {{{3, 4, 9}, {4, 1, 3}, {4}}});
  CheckOp(
      {.name = "conv1d_without_bias",
       .op = [](const Tensors& x) { return Conv1d(x[0], x[1], {}, {.padding = 1}); },
       .composed = [](const Tensors& x) { return Conv1dComposed(x[0], x[1], {}, {.padding = 1}); },
       .shapes = {{{3, 2, 8}, {5, 2, 3}}},
       .activations = {0}});
}

// The gradients have the same bits with any number of threads, as far as single products do.
TEST(Conv1d, AnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  const auto run = [](int count) {
    omp_set_num_threads(count);
    Tensor x = Randn({24, 8, 50}, 1).SetRequiresGrad(true);
    Tensor weight = Randn({16, 8, 3}, 2).SetRequiresGrad(true);
    Tensor bias = Randn({16}, 3).SetRequiresGrad(true);
    const Tensor y = Conv1d(x, weight, bias, {.padding = 1});
    Backward(y, Randn(y.shape(), 4));
    std::vector<std::vector<float>> results;
    for (const Tensor& t : {y.Detach(), x.grad(), weight.grad(), bias.grad()})
      results.push_back(t.ToVector<float>());
    return results;
  };
  const auto one = run(1), two = run(2), four = run(4);
  omp_set_num_threads(threads);
  EXPECT_EQ(one, two);
  EXPECT_EQ(one, four);
}

// For an odd number of taps a packed sequence has the result of a padded one.
TEST(Conv1d, PackedEqualsPadded) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  for (const int64_t groups : {1, 2}) {
    const Tensor rows = Randn({9, 4}, 1).To(CheckedDevice());
    const Tensor weight = Randn({6, 4 / groups, 3}, 2).To(CheckedDevice());
    const Tensor bias = Randn({6}, 3).To(CheckedDevice());
    const std::vector<int32_t> cu = {0, 2, 8};  // the last row is surplus
    const std::vector<float> packed =
        PackedConv1d(rows, weight, bias, At(rows, Packed(cu)), groups).ToVector<float>();
    for (size_t s = 0; s + 1 < cu.size(); ++s) {
      const int64_t length = cu[s + 1] - cu[s];
      const Tensor x = SwapLast(rows.Slice(cu[s], cu[s + 1]).Clone().Reshape({1, length, 4}));
      const std::vector<float> expected =
          SwapLast(Conv1d(x, weight, bias, {.padding = 1, .groups = groups})).ToVector<float>();
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(packed[static_cast<size_t>(cu[s]) * 6 + i], expected[i], 1e-5) << s << " " << i;
    }
    const std::vector<float> biases = bias.ToVector<float>();
    EXPECT_EQ(std::vector<float>(packed.end() - 6, packed.end()), biases);
  }
}

TEST(Conv1d, Packed) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (const int64_t groups : {1, 2}) {
    CheckOp({.name = "packed_conv1d",
             .op =
                 [=](const Tensors& x) {
                   return PackedConv1d(x[0], x[1], x[2], At(x[0], packed), groups);
                 },
             .shapes = {{{9, 2}, {4, 2 / groups, 3}, {4}}, {{11, 4}, {2, 4 / groups, 4}, {2}}},
             .tolerance = 5e-5,
             .grad_tolerance = 5e-4,
             .activations = {0}});
  }
}

TEST(Conv1d, Errors) {
  const auto error = [](const Shape& x, const Shape& weight, const Conv1dOptions& options = {}) {
    try {
      Conv1d(Tensor::Zeros(x), Tensor::Zeros(weight), {}, options);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({2, 3}, {4, 3, 3}), "[conv1d] x must have shape [B, C, L] but has [2, 3]");
  EXPECT_EQ(error({2, 3, 8}, {4, 2, 3}),
            "[conv1d] weight [4, 2, 3] with groups = 1 needs x with 2 channels but x is [2, 3, 8]");
  EXPECT_EQ(error({2, 3, 8}, {4, 3}),
            "[conv1d] weight must have shape [O, C / groups, taps] but has [4, 3] for x [2, 3, 8]");
  EXPECT_EQ(error({2, 4, 8}, {6, 2, 3}, {.groups = 4}),
            "[conv1d] groups = 4 must divide the channels of x [2, 4, 8] and the outputs of weight "
            "[6, 2, 3]");
  EXPECT_EQ(
      error({2, 3, 2}, {4, 3, 5}, {.padding = 1}),
      "[conv1d] x of shape [2, 3, 2] has 4 elements along L with padding, fewer than the 5 of "
      "a window");
  EXPECT_EQ(error({2, 3, 8}, {4, 3, 3}, {.stride = 0}),
            "[conv1d] kernel, stride and dilation must be at least 1 and padding at least 0 but "
            "are 3, 0, 1 and 0");
  EXPECT_THROW(Conv1d(Tensor::Zeros({1, 2, 3}), Tensor::Zeros({4, 2, 2}), Tensor::Zeros({3})),
               Error);
  EXPECT_THROW(Conv1d(Tensor::Zeros({1, 2, 3}), Tensor::Zeros({4, 2, 2}, DType::kF64), {}), Error);
  EXPECT_THROW(PackedConv1d(Tensor::Zeros({1, 2, 3}), Tensor::Zeros({4, 2, 2}), {}, Packed({0, 1})),
               Error);
}

}  // namespace
}  // namespace lathe
