#include "lathe/core/ops/layer_norm.h"

#include <gtest/gtest.h>

#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr double kEps = 1e-5;

DropoutSpec Spec(double p, int64_t rows) {
  DropoutSpec spec;
  spec.p = p;
  spec.key = {.seed = 5, .step = 3, .site = 9};
  std::vector<int32_t> samples, positions;
  for (int32_t i = 0; i < rows; ++i) {
    samples.push_back(i / 3);
    positions.push_back(i % 3);
  }
  spec.row_samples = Tensor::FromVector(samples);
  spec.row_positions = Tensor::FromVector(positions);
  return spec;
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
           .shapes = {{{3, 8}, {8}, {8}}, {{5, 33}, {33}, {33}}, {{0, 8}, {8}, {8}}},
           .activations = {0}});
}

TEST(LayerNorm, WithDropoutAndResidual) {
  for (double p : {0.0, 0.4}) {
    CheckOp({.name = "dropout_add_layer_norm",
             .op =
                 [=](const Tensors& x) {
                   return DropoutAddLayerNorm(x[0], x[1], x[2], x[3], kEps, Spec(p, x[0].dim(0)));
                 },
             .composed =
                 [=](const Tensors& x) {
                   return DropoutAddLayerNormComposed(x[0], x[1], x[2], x[3], kEps,
                                                      Spec(p, x[0].dim(0)));
                 },
             .shapes = {{{3, 8}, {3, 8}, {8}, {8}},
                        {{5, 33}, {5, 33}, {33}, {33}},
                        {{0, 8}, {0, 8}, {8}, {8}}},
             .nan_check = p == 0,  // NaN may be dropped
             .activations = {0, 1}});
  }
}

}  // namespace
}  // namespace lathe
