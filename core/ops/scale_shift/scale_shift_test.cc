#include "lathe/core/ops/scale_shift/scale_shift.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// The shapes have no row, fewer and more rows than a chunk, and odd remainders of a register.
TEST(ScaleShift, Op) {
  const std::vector<std::vector<int64_t>> sizes = {{3, 8}, {1, 1}, {0, 5}, {70, 37}, {9, 300}};
  for (const bool adds : {true, false}) {
    std::vector<std::vector<Shape>> shapes;
    for (const std::vector<int64_t>& size : sizes) {
      const Shape x = {size[0], size[1]}, row = {size[1]};
      shapes.push_back(adds ? std::vector<Shape>{x, row, row, x} : std::vector<Shape>{x, row, row});
    }
    const auto residual = [=](const Tensors& x) { return adds ? x[3] : Tensor(); };
    CheckOp(
        {.name = "scale_shift",
         .op = [=](const Tensors& x) { return ScaleShift(x[0], residual(x), x[1], x[2]); },
         .composed =
             [=](const Tensors& x) { return ScaleShiftComposed(x[0], residual(x), x[1], x[2]); },
         .shapes = shapes,
         .activations = adds ? std::vector<size_t>{0, 3} : std::vector<size_t>{0}});
  }
}

TEST(ScaleShift, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  const Tensor weight = Tensor::FromVector<float>({10, 100});
  const Tensor bias = Tensor::FromVector<float>({0.5f, 0.25f});
  EXPECT_EQ(ScaleShift(x, Tensor(), weight, bias).ToVector<float>(),
            (std::vector<float>{10.5f, 200.25f, 30.5f, 400.25f}));
  EXPECT_EQ(ScaleShift(x, x, weight, bias).ToVector<float>(),
            (std::vector<float>{20.5f, 400.25f, 60.5f, 800.25f}));
}

TEST(ScaleShift, Errors) {
  const auto error = [](const Shape& x, const Shape& residual, const Shape& weight,
                        DType dtype = DType::kF32) {
    try {
      ScaleShift(Tensor::Zeros(x), Tensor::Zeros(residual), Tensor::Zeros(weight, dtype),
                 Tensor::Zeros({2}));
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({3, 2}, {3, 2}, {2}), "");
  EXPECT_EQ(error({3}, {3}, {2}), "[scale_shift] x must have shape [N, C] but has [3]");
  EXPECT_EQ(error({3, 2}, {2, 2}, {2}),
            "[scale_shift] residual must be like x, float32 [3, 2], but is float32 [2, 2]");
  EXPECT_EQ(error({3, 2}, {3, 2}, {3}),
            "[scale_shift] weight and bias must be float32 [2] but one is float32 [3]");
  EXPECT_EQ(error({3, 2}, {3, 2}, {2}, DType::kF64),
            "[scale_shift] weight and bias must be float32 [2] but one is float64 [2]");
}

}  // namespace
}  // namespace lathe
