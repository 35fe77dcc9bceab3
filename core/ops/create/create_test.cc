#include "lathe/core/ops/create/create.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Create, Arange) {
  EXPECT_EQ(Arange(4).ToVector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Arange(5, -1, -2).ToVector<int64_t>(), (std::vector<int64_t>{5, 3, 1}));
  EXPECT_EQ(Arange(1, 2, 0.25).ToVector<float>(), (std::vector<float>{1, 1.25, 1.5, 1.75}));
  EXPECT_EQ(Arange(2.5).ToVector<float>(), (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(Arange(3, 3).shape(), (Shape{0}));
  EXPECT_EQ(Arange(3, 1).shape(), (Shape{0}));
  EXPECT_EQ(ArangeOf(0, 3, 1, DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(ArangeOf(0, 3, 1, DType::kBF16).To(DType::kF32).ToVector<float>(),
            (std::vector<float>{0, 1, 2}));
  EXPECT_THROW(Arange(0, 3, 0), Error);
  EXPECT_THROW(Arange(0, std::numeric_limits<double>::infinity()), Error);
  EXPECT_THROW(Arange(0, 1e300), Error);
}

// The mean, the variance, and how many of a million numbers lie within 1 and 2.
TEST(Create, Distributions) {
  constexpr int64_t kN = 1'000'000;
  const auto moments = [](const std::vector<float>& values) {
    double sum = 0, squares = 0;
    for (const double v : values) sum += v, squares += v * v;
    const double mean = sum / kN;
    return std::pair(mean, squares / kN - mean * mean);
  };
  const std::vector<float> normal = Randn({kN}, 3).ToVector<float>();
  EXPECT_NEAR(moments(normal).first, 0, 5e-3);
  EXPECT_NEAR(moments(normal).second, 1, 1e-2);
  const auto within = [&](float limit) {
    return static_cast<double>(
               std::ranges::count_if(normal, [&](float v) { return std::fabs(v) < limit; })) /
           kN;
  };
  EXPECT_NEAR(within(1), 0.6827, 3e-3);
  EXPECT_NEAR(within(2), 0.9545, 3e-3);
  const std::vector<float> uniform = Rand({kN}, 3).ToVector<float>();
  EXPECT_NEAR(moments(uniform).first, 0.5, 2e-3);
  EXPECT_NEAR(moments(uniform).second, 1.0 / 12, 1e-3);
  EXPECT_GE(std::ranges::min(uniform), 0);
  EXPECT_LE(std::ranges::max(uniform), 1);
}

TEST(Create, SeedsAndSizes) {
  for (const auto draw : {Randn, Rand}) {
    const std::vector<float> many = draw({3, 1001}, 5, {}).ToVector<float>();
    const std::vector<float> few = draw({1027}, 5, {}).ToVector<float>();
    EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
    EXPECT_NE(draw({1027}, 6, {}).ToVector<float>(), few);
    EXPECT_EQ(draw({0, 3}, 5, {}).numel(), 0);
  }
  EXPECT_THROW(Randn({2}, 1, {.dtype = DType::kI64}), Error);
}

// The same bits with any number of threads, and on a device.
TEST(Create, SameEverywhere) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const int threads = omp_get_max_threads();
  for (const auto draw : {Randn, Rand}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      omp_set_num_threads(1);
      const Tensor one = draw({70'000}, 9, {.dtype = dtype});
      omp_set_num_threads(3);
      const Tensor three = draw({70'000}, 9, {.dtype = dtype, .device = CheckedDevice()});
      omp_set_num_threads(threads);
      EXPECT_EQ(three.device(), CheckedDevice());
      EXPECT_EQ(std::memcmp(one.raw_data(), three.To(Device{}).raw_data(),
                            static_cast<size_t>(one.bytes())),
                0);
    }
  }
}

}  // namespace
}  // namespace lathe
