#include "lathe/core/ops/norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr double kEps = 1e-5;

// Rows of fewer columns than a register, of whole ones and of a rest. Rows that fit a warp, and
// longer ones. More rows than are summed together.
TEST(RmsNorm, Op) {
  CheckOp({.name = "rms_norm",
           .op = [](const Tensors& x) { return RmsNorm(x[0], x[1], kEps); },
           .composed = [](const Tensors& x) { return RmsNormComposed(x[0], x[1], kEps); },
           .shapes = {{{3, 8}, {8}},
                      {{5, 33}, {33}},
                      {{70, 64}, {64}},
                      {{1, 1}, {1}},
                      {{2, 1300}, {1300}},
                      {{0, 8}, {8}}},
           .activations = {0}});
}

TEST(RmsNorm, Values) {
  const Tensor x = Tensor::FromVector<float>({3, 4, 0, 0}, {2, 2});
  const Tensor weight = Tensor::FromVector<float>({2, 10});
  const std::vector<float> y = RmsNorm(x, weight, 0.5).ToVector<float>();
  const double root = std::sqrt((9 + 16) / 2.0 + 0.5);
  EXPECT_NEAR(y[0], 6 / root, 1e-6);
  EXPECT_NEAR(y[1], 40 / root, 1e-5);
  EXPECT_EQ(y[2], 0);
}

TEST(RmsNorm, Errors) {
  const auto error = [](const Tensor& x, const Tensor& weight) {
    try {
      RmsNorm(x, weight, kEps);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error(Tensor::Zeros({2, 3}), Tensor::Zeros({3})), "");
  EXPECT_EQ(error(Tensor::Zeros({3}), Tensor::Zeros({3})),
            "[rms_norm] x must have shape [N, C] with C from 1 to 32768 but has [3]");
  EXPECT_EQ(error(Tensor::Zeros({2, 3}), Tensor::Zeros({2})),
            "[rms_norm] weight must have shape [3] but has [2]");
  EXPECT_EQ(error(Tensor::Zeros({2, 3}), Tensor::Zeros({3}, DType::kF64)),
            "[rms_norm] weight must be float32 for float32 x but is float64");
}

}  // namespace
}  // namespace lathe
