#include "lathe/core/ops/segment/segment_max.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/math/extremes.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Tensor Ends(const std::vector<int32_t>& cu_seqlens) { return Tensor::FromVector(cu_seqlens); }

// The maxima of each sequence's rows, and zeros for a sequence without rows.
Tensor Composed(const Tensor& x, const std::vector<int32_t>& cu) {
  std::vector<Tensor> maxima = {SliceRows(x, 0, 0)};  // the rest of x gives no row of the result
  for (size_t b = 0; b + 1 < cu.size(); ++b) {
    maxima.push_back(cu[b] == cu[b + 1]
                         ? Tensor::Zeros({1, x.dim(1)}, x.dtype(), x.device())
                         : Max(SliceRows(x, cu[b], cu[b + 1]), 0, /*keepdim=*/true).values);
  }
  return ConcatRows(maxima);
}

// More and fewer columns than a block takes; a sequence without rows, one of one row, and a long
// one; rows beyond the last sequence.
TEST(SegmentMax, Op) {
  const std::vector<int32_t> cu = {0, 3, 3, 4, 24};
  CheckOp({.name = "segment_max",
           .op = [=](const Tensors& x) { return SegmentMax(x[0], Ends(cu).To(x[0].device())); },
           .composed = [=](const Tensors& x) { return Composed(x[0], cu); },
           .shapes = {{{24, 1}}, {{24, 5}}, {{24, 0}}, {{29, 64}}, {{24, 131}}},
           .activations = {0}});
  CheckOp({.name = "segment_max_none",
           .op = [](const Tensors& x) { return SegmentMax(x[0], Ends({0}).To(x[0].device())); },
           .composed = [](const Tensors& x) { return Composed(x[0], {0}); },
           .shapes = {{{0, 3}}, {{4, 3}}},
           .nan_check = false});  // no row counts
}

// The first of equal elements, and the first NaN, get the gradient. A NaN stays in its sequence,
// and one in a surplus row reaches nothing.
TEST(SegmentMax, TiesAndNaN) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Device device = CheckedDevice();
  Tensor x = Tensor::FromVector<float>({-2, -1, -1, 3, nan, nan, nan}, {7, 1}).To(device);
  x.SetRequiresGrad(true);
  const Tensor y = SegmentMax(x, Ends({0, 3, 3, 6}).To(device));
  const std::vector<float> values = y.ToVector<float>();
  EXPECT_EQ(values[0], -1);
  EXPECT_EQ(values[1], 0);
  EXPECT_TRUE(std::isnan(values[2]));
  Backward(y, Tensor::FromVector<float>({4, 5, 6}, {3, 1}).To(device));
  EXPECT_EQ(x.grad().ToVector<float>(), (std::vector<float>{0, 4, 0, 0, 6, 0, 0}));
}

TEST(SegmentMax, Errors) {
  const Tensor x = Tensor::Zeros({4, 2});
  EXPECT_THROW(SegmentMax(Tensor::Zeros({4}), Ends({0, 4})), Error);
  EXPECT_THROW(SegmentMax(x, Tensor::Zeros({2})), Error);
  EXPECT_THROW(SegmentMax(x, Ends({1, 4})), Error);
  EXPECT_THROW(SegmentMax(x, Ends({0, 3, 2})), Error);
  EXPECT_THROW(SegmentMax(x, Ends({0, 5})), Error);
}

}  // namespace
}  // namespace lathe
