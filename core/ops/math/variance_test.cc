#include "lathe/core/ops/math/variance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lathe/core/ops/create/create.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Variance, Op) {
  const auto check = [](const char* name, const std::vector<int>& dims,
                        const VarianceOptions& options,
                        const std::vector<std::vector<Shape>>& shapes) {
    CheckOp({.name = name,
             .op = [=](const Tensors& x) { return Variance(x[0], dims, options); },
             .composed = [=](const Tensors& x) { return VarianceComposed(x[0], dims, options); },
             .shapes = shapes,
             .activations = {0}});
  };
  check("variance_all", {}, {}, {{{2}}, {{5}}, {{3, 4}}, {{7, 300}}});
  check("variance_last", {-1}, {}, {{{3, 4}}, {{2, 3, 1100}}, {{0, 3}}});
  check("variance_first", {0}, {.correction = 0, .keepdim = true}, {{{1, 4}}, {{3, 4, 5}}});
  check("variance_apart", {0, 2}, {.correction = 2}, {{{3, 4, 5}}, {{2, 3, 4, 5}}, {{30, 2, 40}}});
}

// The mean is subtracted before squares are summed, so numbers far from 0 lose nothing.
TEST(Variance, FarFromZero) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Tensor x = Tensor::FromVector<float>({10000, 10001, 10002}).To(CheckedDevice());
  EXPECT_EQ(Variance(x).Item(), 1);
}

TEST(Variance, TooFewElements) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const auto item = [](const std::vector<float>& x, int64_t correction) {
    return Variance(Tensor::FromVector(x).To(CheckedDevice()), {}, {.correction = correction})
        .Item();
  };
  EXPECT_TRUE(std::isnan(item({1}, 1)));
  EXPECT_TRUE(std::isnan(item({}, 0)));
  EXPECT_TRUE(std::isinf(item({1, 2}, 3)));
  EXPECT_EQ(item({1}, 0), 0);
}

TEST(Variance, Errors) {
  EXPECT_THROW(Variance(Tensor::Zeros({2, 3}), {2}), Error);
  EXPECT_THROW(Variance(Tensor::Zeros({2, 3}), {1, -1}), Error);
  EXPECT_THROW(Variance(Tensor::Zeros({2}, DType::kI64)), Error);
}

}  // namespace
}  // namespace lathe
