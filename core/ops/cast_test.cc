#include "lathe/core/ops/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lathe/core/autograd.h"

namespace lathe {
namespace {

// The neighbours of x in bfloat16 are worked out from the definition: 8 significant bits.
double NearestBFloat16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(x / unit) * unit;  // ties to even
}

TEST(Cast, RoundsToNearestEven) {
  std::vector<float> values = {0.0f,  -0.0f,  1.0f,       1.00390625f, 1.01171875f, -1.00390625f,
                               3e38f, 1e-30f, 3.1415927f, -2.7182817f, 65504.0f,    1.0f / 3};
  for (int i = 0; i < 1000; ++i) values.push_back(std::sin(static_cast<float>(i)) * 100);
  const Tensor narrow = Tensor::FromVector(values).To(DType::kBF16);
  const std::vector<float> back = narrow.To(DType::kF32).ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(back[i], NearestBFloat16(values[i])) << i;
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor special =
      Tensor::FromVector<float>({infinity, -infinity, std::nanf(""), 3.4e38f}).To(DType::kBF16);
  EXPECT_EQ(special.To(DType::kF32).ToVector<float>()[0], infinity);
  EXPECT_EQ(special.To(DType::kF32).ToVector<float>()[1], -infinity);
  EXPECT_TRUE(std::isnan(special.To(DType::kF32).ToVector<float>()[2]));
  EXPECT_EQ(special.To(DType::kF32).ToVector<float>()[3], infinity);
}

TEST(Cast, GradientComesBackInTheInputsDType) {
  Tensor x = Tensor::FromVector<float>({1, 2, 3});
  x.SetRequiresGrad(true);
  const Tensor y = Cast(Cast(x, DType::kBF16), DType::kF32);
  Backward(y, Tensor::FromVector<float>({1, 0.5, -2}));
  EXPECT_EQ(x.grad().ToVector<float>(), std::vector<float>({1, 0.5, -2}));
  EXPECT_EQ(Cast(x, DType::kF32).impl(), x.impl());
}

TEST(Cast, LowPrecisionCopyFollowsTheValues) {
  Tensor x = Tensor::FromVector<float>({1, 2});
  const Tensor copy = LowPrecisionCopy(x, DType::kBF16);
  EXPECT_EQ(copy.To(DType::kF32).ToVector<float>(), std::vector<float>({1, 2}));
  EXPECT_EQ(LowPrecisionCopy(x, DType::kBF16).raw_data(), copy.raw_data());
  x.Fill(7);
  EXPECT_EQ(LowPrecisionCopy(x, DType::kBF16).To(DType::kF32).ToVector<float>(),
            std::vector<float>({7, 7}));
}

}  // namespace
}  // namespace lathe
