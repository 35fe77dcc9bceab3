#include "lathe/core/ops/segment/segment_mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Tensor Ends(const std::vector<int32_t>& cu_seqlens) { return Tensor::FromVector(cu_seqlens); }

// More and fewer columns than a block takes; a sequence without rows, one of one row, and long
// ones; rows beyond the last sequence.
TEST(SegmentMean, Op) {
  const Tensor ends = Ends({0, 3, 3, 4, 24});
  CheckOp({.name = "segment_mean",
           .op = [=](const Tensors& x) { return SegmentMean(x[0], ends.To(x[0].device())); },
           .composed = [=](const Tensors& x) { return SegmentMeanComposed(x[0], ends); },
           .shapes = {{{24, 1}}, {{24, 5}}, {{24, 0}}, {{29, 64}}, {{24, 131}}},
           .activations = {0}});
  CheckOp({.name = "segment_mean_none",
           .op = [](const Tensors& x) { return SegmentMean(x[0], Ends({0}).To(x[0].device())); },
           .composed = [](const Tensors& x) { return SegmentMeanComposed(x[0], Ends({0})); },
           .shapes = {{{0, 3}}, {{4, 3}}},
           .nan_check = false});  // no row counts
}

// More rows, and more sequences, than a grid has blocks.
TEST(SegmentMean, ManySequences) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  std::vector<int32_t> cu = {0};
  for (int32_t i = 0; i < 4500; ++i) cu.push_back(cu.back() + 1 + i % 3);
  std::vector<float> numbers(static_cast<size_t>(cu.back()) * 2);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
  const Device device = CheckedDevice();
  const Tensor x = Tensor::FromVector(numbers, {cu.back(), 2}).To(device).SetRequiresGrad(true);
  const Tensor y = SegmentMean(x, Ends(cu).To(device));
  Backward(y, Tensor::Full(y.shape(), 1, DType::kF32, device));
  const std::vector<float> means = y.ToVector<float>(), gradient = x.grad().ToVector<float>();
  for (size_t b = 0; b + 1 < cu.size(); ++b) {
    double sum = 0;
    for (int32_t r = cu[b]; r < cu[b + 1]; ++r) sum += numbers[static_cast<size_t>(r) * 2 + 1];
    const double length = cu[b + 1] - cu[b];
    ASSERT_NEAR(means[b * 2 + 1], sum / length, 1e-6) << b;
    ASSERT_NEAR(gradient[static_cast<size_t>(cu[b]) * 2], 1 / length, 1e-6) << b;
  }
}

// A NaN stays in its own sequence, and one in a surplus row reaches nothing.
TEST(SegmentMean, SequencesAreSeparate) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::FromVector<float>({1, 2, nan, 4, nan}, {5, 1}).SetRequiresGrad(true);
  const Tensor y = SegmentMean(x, Ends({0, 2, 4}));
  EXPECT_EQ(y.data<float>()[0], 1.5f);
  EXPECT_TRUE(std::isnan(y.data<float>()[1]));
  Backward(y, Tensor::FromVector<float>({4, 6}, {2, 1}));
  EXPECT_EQ(x.grad().ToVector<float>(), (std::vector<float>{2, 2, 3, 3, 0}));
}

TEST(SegmentMean, Errors) {
  const auto error = [](const Tensor& x, const Tensor& ends) {
    try {
      SegmentMean(x, ends);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  const Tensor x = Tensor::Zeros({4, 2});
  EXPECT_EQ(error(x, Ends({0, 1, 4})), "");
  EXPECT_EQ(error(Tensor::Zeros({4}), Ends({0, 4})),
            "[segment_mean] x must have shape [T, C] but has [4]");
  EXPECT_EQ(error(x, Tensor::Zeros({2})),
            "[segment_mean] cu_seqlens must be int32 of shape [B + 1] but is float32 of shape [2]");
  EXPECT_EQ(error(x, Ends({1, 4})),
            "[segment_mean] cu_seqlens must start with 0 but starts with 1");
  EXPECT_EQ(error(x, Ends({0, 3, 2})), "[segment_mean] cu_seqlens must not decrease");
  EXPECT_EQ(error(x, Ends({0, 5})),
            "[segment_mean] the sequences have 5 rows but x has shape [4, 2]");
}

}  // namespace
}  // namespace lathe
