#include "lathe/core/ops/layer_norm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr double kEps = 1e-5;

DropoutSpec Spec(double p, int64_t rows, Device device) {
  DropoutSpec spec;
  spec.p = p;
  spec.key = {.seed = 5, .step = 3, .site = 9};
  std::vector<int32_t> samples, positions;
  for (int32_t i = 0; i < rows; ++i) {
    samples.push_back(i / 3);
    positions.push_back(i % 3);
  }
  spec.row_samples = Tensor::FromVector(samples).To(device);
  spec.row_positions = Tensor::FromVector(positions).To(device);
  return spec;
}

// Returns the shapes of x, residual, weight and bias for each shape of x.
std::vector<std::vector<Shape>> WithResidual(const std::vector<Shape>& shapes_of_x) {
  std::vector<std::vector<Shape>> shapes;
  for (const Shape& x : shapes_of_x) shapes.push_back({x, x, {x[1]}, {x[1]}});
  return shapes;
}

TEST(LayerNorm, Plain) {
  CheckOp({.name = "layer_norm",
           .op = [](const Tensors& x) { return LayerNorm(x[0], x[1], x[2], kEps); },
           .composed =
               [](const Tensors& x) {
                 const Tensor centred = Sub(x[0], MeanLast(x[0]));
                 const Tensor variance = MeanLast(Mul(centred, centred));
                 const Tensor normal = Div(centred, Sqrt(AddScalar(variance, kEps)));
                 return Add(Mul(normal, x[1]), x[2]);
               },
           .shapes = {{{3, 8}, {8}, {8}},
                      {{5, 33}, {33}, {33}},
                      {{2, 119}, {119}, {119}},
                      {{0, 8}, {8}, {8}}},
           .activations = {0}});
}

TEST(LayerNorm, WithoutBias) {
  CheckOp({.name = "layer_norm_without_bias",
           .op = [](const Tensors& x) { return LayerNorm(x[0], x[1], {}, kEps); },
           .composed =
               [](const Tensors& x) {
                 const Tensor centred = Sub(x[0], MeanLast(x[0]));
                 const Tensor variance = MeanLast(Mul(centred, centred));
                 return Mul(Div(centred, Sqrt(AddScalar(variance, kEps))), x[1]);
               },
           .shapes = {{{3, 8}, {8}}, {{5, 33}, {33}}, {{0, 8}, {8}}},
           .activations = {0}});
  CheckOp({.name = "dropout_add_layer_norm_without_bias",
           .op =
               [](const Tensors& x) {
                 return DropoutAddLayerNorm(x[0], x[1], x[2], {}, kEps,
                                            Spec(0.4, x[0].dim(0), x[0].device()));
               },
           .composed =
               [](const Tensors& x) {
                 return DropoutAddLayerNormComposed(x[0], x[1], x[2], {}, kEps,
                                                    Spec(0.4, x[0].dim(0), x[0].device()));
               },
           .shapes = {{{4, 16}, {4, 16}, {16}}},
           .activations = {0, 1}});
}

TEST(LayerNorm, WithDropoutAndResidual) {
  for (double p : {0.0, 0.4}) {
    CheckOp({.name = "dropout_add_layer_norm",
             .op =
                 [=](const Tensors& x) {
                   return DropoutAddLayerNorm(x[0], x[1], x[2], x[3], kEps,
                                              Spec(p, x[0].dim(0), x[0].device()));
                 },
             .composed =
                 [=](const Tensors& x) {
                   return DropoutAddLayerNormComposed(x[0], x[1], x[2], x[3], kEps,
                                                      Spec(p, x[0].dim(0), {}));
                 },
             .shapes = WithResidual({{3, 8}, {5, 33}, {0, 8}, {70, 32}, {4, 119}}),
             .nan_check = p == 0,  // NaN may be dropped
             .activations = {0, 1}});
  }
}

// The sums saved for the backward pass are rounded to nearest, ties to even, as BFloat16 rounds,
// whatever instructions the processor has for it.
TEST(LayerNorm, SumsAreRoundedAsBFloat16) {
  constexpr int64_t kColumns = 119;  // whole registers and a part of one
  std::vector<BFloat16> x, residual, y(kColumns), z(kColumns), expected;
  const std::vector<float> weight(kColumns, 1), bias(kColumns, 0);
  const float inf = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kColumns; ++i) {
    // The sums are ties that round up, ties that round down, and numbers beside ties.
    const float first = 1 + static_cast<float>(i % 16) / 128, second = (i % 7 - 3) * 0x1p-9f;
    x.push_back(BFloat16(i == 20 ? inf : i == 22 || i == 117 ? std::nanf("") : first));
    residual.push_back(BFloat16(i == 21 ? -inf : i == 118 ? std::nanf("") : second));
    expected.push_back(
        BFloat16(static_cast<float>(x.back()) + static_cast<float>(residual.back())));
  }
  float mean, rstd;
  cpu::Kernels<cpu::LayerNormKernels>().bf16.forward(
      y.data(), z.data(), &mean, &rstd, x.data(), residual.data(), weight.data(), bias.data(),
      {.rows = 1, .n = kColumns, .eps = kEps, .mask = {}});
  for (size_t i = 0; i < z.size(); ++i) {
    const float is = static_cast<float>(z[i]), should_be = static_cast<float>(expected[i]);
    EXPECT_TRUE(is == should_be || (std::isnan(is) && std::isnan(should_be)))
        << "column " << i << ": " << is << " instead of " << should_be;
  }
  // A NaN that would become 0 if it were rounded like a number stays NaN.
  const float all_ones = std::bit_cast<float>(0x7fffffff);
  std::vector<float> spoilt = bias;
  spoilt[3] = spoilt[13] = spoilt[118] = all_ones;
  const std::vector<BFloat16> plain(kColumns, BFloat16(1)), none(kColumns, BFloat16(0));
  cpu::Kernels<cpu::LayerNormKernels>().bf16.forward(
      y.data(), z.data(), &mean, &rstd, plain.data(), none.data(), weight.data(), spoilt.data(),
      {.rows = 1, .n = kColumns, .eps = kEps, .mask = {}});
  for (const size_t i : {3, 13, 118}) EXPECT_TRUE(std::isnan(static_cast<float>(y[i]))) << i;
  EXPECT_EQ(static_cast<float>(y[4]), 0);
}

// All sizes work on a device. Some rows fit a warp, others need a block; loads are of 16 bytes or
// of one element. One case has more rows than are summed together.
TEST(LayerNorm, SizesOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const auto op = [](const Tensors& x) {
    return DropoutAddLayerNorm(x[0], x[1], x[2], x[3], kEps, Spec(0.2, x[0].dim(0), x[0].device()));
  };
  CheckOp({.name = "layer_norm_sizes",
           .op = op,
           .shapes = WithResidual({{2, 6},
                                   {9, 64},
                                   {33, 768},
                                   {3, 1024},
                                   {2, 1030},
                                   {5, 1152},
                                   {1, 8224},
                                   {1, 9001},
                                   {1, 32768}}),
           .extremes = false,
           .nan_check = false,
           .activations = {0, 1}});
  // In narrow dtypes a row of one column has nothing but rounding errors, so it is tested in
  // float32.
  CheckOp({.name = "layer_norm_one_column",
           .op = op,
           .shapes = WithResidual({{3, 1}}),
           .extremes = false,
           .nan_check = false});
  CheckOp({.name = "layer_norm_rows",
           .op = op,
           .shapes = WithResidual({{40, 7}, {2200, 32}}),
           .extremes = false,
           .nan_check = false,
           .activations = {0, 1},
           .bfloat16_tolerance = 0.05});
}

TEST(LayerNorm, AtAnyAddressOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  Tensor all = Tensor::Full({3 * 64 + 1}, 1);
  for (int64_t i = 0; i < all.numel(); ++i) all.data<float>()[i] = std::cos(static_cast<float>(i));
  const Tensor weight = Tensor::Full({64}, 1.5), bias = Tensor::Full({64}, -0.5);
  const auto run = [&](Device device, DType dtype) {
    const Tensor x = all.To(dtype).To(device).Slice(1, 3 * 64 + 1).Reshape({3, 64});
    const Tensor y = LayerNorm(x, weight.To(device), bias.To(device), kEps);
    return y.To(DType::kF32).ToVector<float>();
  };
  const std::vector<float> expected = run({}, DType::kF32);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const double limit = dtype == DType::kF32 ? 1e-5 : dtype == DType::kBF16 ? 0.02 : 0.003;
    const std::vector<float> actual = run(CheckedDevice(), dtype);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], limit) << ToString(dtype) << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace lathe
