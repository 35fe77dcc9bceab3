#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// GELU in float32 and bfloat16 equals x/2 (1 + erf(x / sqrt 2)) as the C library computes it in
// float64. Both whole registers and the elements left over at the end are tested.
TEST(Activation, GeluIsThatOfTheLibrary) {
  const auto& all = cpu::Kernels<cpu::ActivationKernels>();
  std::vector<float> x;
  for (int i = -4003; i <= 4003; ++i) x.push_back(static_cast<float>(i) / 300);
  x.insert(x.end(), {-1e4f, -100, -30, -0.0f, 1e-30f, 30, 100, 1e4f});
  const int64_t n = std::ssize(x);
  std::vector<float> y(x.size()), dx(x.size()), again(x.size()), dx_alone(x.size());
  const std::vector<float> dy(x.size(), 1);
  all.f32.forward(y.data(), x.data(), n, ActivationKind::kGelu);
  all.f32.backward(dx_alone.data(), dy.data(), x.data(), n, ActivationKind::kGelu);
  all.f32.backward_and_value(dx.data(), again.data(), dy.data(), x.data(), n,
                             ActivationKind::kGelu);
  std::vector<BFloat16> narrow, narrow_y(x.size()), narrow_dx(x.size()), narrow_again(x.size());
  const std::vector<BFloat16> narrow_dy(x.size(), BFloat16(1));
  for (const float value : x) narrow.push_back(BFloat16(value));
  all.bf16.forward(narrow_y.data(), narrow.data(), n, ActivationKind::kGelu);
  all.bf16.backward_and_value(narrow_dx.data(), narrow_again.data(), narrow_dy.data(),
                              narrow.data(), n, ActivationKind::kGelu);
  const auto value = [](double v) { return v / 2 * std::erfc(-v / std::sqrt(2.0)); };
  const auto derivative = [](double v) {
    return std::erfc(-v / std::sqrt(2.0)) / 2 +
           v * std::exp(-v * v / 2) / std::sqrt(2 * std::acos(-1.0));
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], limit = 3e-7 * std::max(1.0, std::fabs(at));
    ASSERT_NEAR(y[i], value(at), limit) << at;
    ASSERT_NEAR(again[i], value(at), limit) << at;
    ASSERT_NEAR(dx[i], derivative(at), 1e-6) << at;
    ASSERT_EQ(dx[i], dx_alone[i]) << at;
    if (at < -6) {
      ASSERT_LE(std::fabs(y[i]), 1e-6) << at;
    }
    const double rounded = static_cast<float>(narrow[i]);
    const double eighth_bit = std::max(1e-6, std::fabs(value(rounded)) / 256) + limit;
    ASSERT_NEAR(static_cast<float>(narrow_y[i]), value(rounded), eighth_bit) << rounded;
    ASSERT_NEAR(static_cast<float>(narrow_again[i]), value(rounded), eighth_bit) << rounded;
    ASSERT_NEAR(static_cast<float>(narrow_dx[i]), derivative(rounded), 0.005) << rounded;
  }
  // Infinity and NaN stay what they are, in whole registers and in the elements left over.
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const int64_t size : {2, 32}) {
    std::vector<float> from(static_cast<size_t>(size), inf), to(from), gradient(from);
    from.back() = nan;
    for (const bool again_too : {false, true}) {
      if (again_too) {
        all.f32.backward_and_value(gradient.data(), to.data(), dy.data(), from.data(), size,
                                   ActivationKind::kGelu);
        EXPECT_TRUE(std::isnan(gradient.back()));
      } else {
        all.f32.forward(to.data(), from.data(), size, ActivationKind::kGelu);
      }
      EXPECT_EQ(to[0], inf);
      EXPECT_TRUE(std::isnan(to.back()));
    }
  }
}

// Activations and their gradients are the same at addresses that don't allow 16-byte loads.
TEST(Activation, UnalignedOnDevices) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  constexpr int64_t kN = 61;
  std::vector<float> values(kN + 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 3 * std::sin(static_cast<float>(i));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor all = Tensor::FromVector(values).To(dtype).To(CheckedDevice());
    for (const char* name : {"gelu", "gelu_new", "relu", "tanh", "silu"}) {
      const auto run = [&](bool aligned) {
        const auto part = [&](int64_t begin) {
          const Tensor slice = all.Slice(begin, begin + kN);
          return aligned ? slice.Clone() : slice.Detach();
        };
        Tensor x = part(1).SetRequiresGrad(true);
        const Tensor y = Activation(x, ParseActivation(name));
        Backward(y, part(3));
        return std::pair(y.Detach().To(DType::kF32).ToVector<float>(),
                         x.grad().To(DType::kF32).ToVector<float>());
      };
      SCOPED_TRACE(std::string(name) + " in " + ToString(dtype));
      const auto unaligned = run(false), aligned = run(true);
      ExpectSameButForRounding(unaligned.first, aligned.first, dtype);
      ExpectSameButForRounding(unaligned.second, aligned.second, dtype);
    }
  }
}

TEST(Activation, EachIsItsComposition) {
  const std::vector<std::vector<Shape>> shapes = {{{7}}, {{3, 19}}, {{0, 3}}};
  CheckOp({.name = "gelu",
           .op = [](const Tensors& x) { return Activation(x[0], ParseActivation("gelu")); },
           .composed =
               [](const Tensors& x) {
                 const Tensor erf = Erf(Scale(x[0], 0.70710678118654752440));
                 return Mul(Scale(x[0], 0.5), AddScalar(erf, 1));
               },
           .shapes = shapes,
           .activations = {0}});
  CheckOp({.name = "gelu_new",
           .op = [](const Tensors& x) { return Activation(x[0], ParseActivation("gelu_new")); },
           .composed =
               [](const Tensors& x) {
                 const Tensor cube = Mul(Mul(x[0], x[0]), x[0]);
                 const Tensor inner =
                     Scale(Add(x[0], Scale(cube, 0.044715)), 0.79788456080286535588);
                 return Mul(Scale(x[0], 0.5), AddScalar(Tanh(inner), 1));
               },
           .shapes = shapes,
           .activations = {0}});
  CheckOp({.name = "silu",
           .op = [](const Tensors& x) { return Activation(x[0], ParseActivation("silu")); },
           .composed = [](const Tensors& x) { return Mul(x[0], Sigmoid(x[0])); },
           .shapes = shapes,
           .activations = {0}});
  CheckOp({.name = "activation_relu",
           .op = [](const Tensors& x) { return Activation(x[0], ParseActivation("relu")); },
           .composed = [](const Tensors& x) { return Relu(x[0]); },
           .shapes = shapes,
           .activations = {0}});
  CheckOp({.name = "activation_tanh",
           .op = [](const Tensors& x) { return Activation(x[0], ParseActivation("tanh")); },
           .composed = [](const Tensors& x) { return Tanh(x[0]); },
           .shapes = shapes,
           .activations = {0}});
  EXPECT_THROW(ParseActivation("no_such_activation"), Error);
}

}  // namespace
}  // namespace lathe
