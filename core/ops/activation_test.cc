#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
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

// In bfloat16, values and gradients are those of float32, rounded: for all numbers, in place and
// not.
TEST(Activation, BFloat16IsFloat32Rounded) {
  const auto& all = cpu::Kernels<cpu::ActivationKernels>();
  constexpr int64_t kN = (1 << 16) + 3;  // all values, and some left over
  std::vector<BFloat16> x(kN), dy(kN), narrow(kN), narrow_dx(kN);
  std::vector<float> wide_x(kN), wide_dy(kN), wide(kN), wide_dx(kN);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i].bits = static_cast<uint16_t>(i);
    wide_x[i] = static_cast<float>(x[i]);
    dy[i] = BFloat16(wide_dy[i] = static_cast<float>(i % 64) / 16 - 2);
  }
  dy[77] = BFloat16(wide_dy[77] = std::nanf(""));
  const auto expect_same = [&](const std::vector<BFloat16>& is, const std::vector<float>& of) {
    for (size_t i = 0; i < x.size(); ++i) {
      const float a = static_cast<float>(is[i]), b = static_cast<float>(BFloat16(of[i]));
      const float limit = std::isfinite(b) ? 0x1p-126f + std::fabs(b) / 128 : 0;
      ASSERT_TRUE(a == b || std::fabs(a - b) <= limit || (std::isnan(a) && std::isnan(b)))
          << wide_x[i] << ": " << a << " instead of " << b;
    }
  };
  for (int k = 1; k <= static_cast<int>(ActivationKind::kSigmoid); ++k) {
    SCOPED_TRACE("kind " + std::to_string(k));
    const auto kind = static_cast<ActivationKind>(k);
    for (const bool in_place : {false, true}) {
      narrow = x;
      all.bf16.forward(narrow.data(), in_place ? narrow.data() : x.data(), kN, kind);
      all.f32.forward(wide.data(), wide_x.data(), kN, kind);
      expect_same(narrow, wide);
      narrow_dx = dy;
      all.bf16.backward(narrow_dx.data(), in_place ? narrow_dx.data() : dy.data(), x.data(), kN,
                        kind);
      all.f32.backward(wide_dx.data(), wide_dy.data(), wide_x.data(), kN, kind);
      expect_same(narrow_dx, wide_dx);
      narrow_dx = dy;
      all.bf16.backward_and_value(narrow_dx.data(), narrow.data(),
                                  in_place ? narrow_dx.data() : dy.data(), x.data(), kN, kind);
      all.f32.backward_and_value(wide_dx.data(), wide.data(), wide_dy.data(), wide_x.data(), kN,
                                 kind);
      expect_same(narrow, wide);
      expect_same(narrow_dx, wide_dx);
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
    for (const char* name : {"gelu", "gelu_new", "relu", "tanh", "silu", "gelu_10", "quick_gelu",
                             "mish", "relu2", "relu6", "leaky_relu", "sigmoid"}) {
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
}

// The inputs reach beyond the places at which a formula changes.
TEST(Activation, EachOfTheRarerOnesIsItsComposition) {
  const auto gelu = [](const Tensor& x) { return Activation(x, ActivationKind::kGelu); };
  // min(x, most), whose derivative at `most` is 0, as PyTorch's.
  const auto cut = [](const Tensor& x, double most) {
    return AddScalar(Scale(Relu(AddScalar(Scale(x, -1), most)), -1), most);
  };
  using Composed = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<const char*, Composed>> cases = {
      {"gelu_fast",
       [](const Tensor& x) {
         const Tensor inner = AddScalar(Scale(Mul(x, x), 0.044715), 1);
         const Tensor tanh = Tanh(Mul(Scale(x, 0.79788456080286535588), inner));
         return Mul(Scale(x, 0.5), AddScalar(tanh, 1));
       }},
      {"gelu_10", [&](const Tensor& x) { return cut(gelu(x), 10); }},
      {"quick_gelu", [](const Tensor& x) { return Mul(x, Sigmoid(Scale(x, 1.702))); }},
      {"mish", [](const Tensor& x) { return Mul(x, Tanh(Log(AddScalar(Exp(x), 1)))); }},
      {"relu2", [](const Tensor& x) { return Mul(Relu(x), Relu(x)); }},
      {"relu6", [&](const Tensor& x) { return cut(Relu(x), 6); }},
      {"leaky_relu", [](const Tensor& x) { return Sub(Relu(x), Scale(Relu(Scale(x, -1)), 0.01)); }},
      {"sigmoid", [](const Tensor& x) { return Sigmoid(x); }}};
  for (const auto& [name, composed] : cases) {
    CheckOp(
        {.name = std::string("activation_") + name,
         .op = [kind = ParseActivation(name)](const Tensors& x) { return Activation(x[0], kind); },
         .composed = [&of = composed](const Tensors& x) { return of(x[0]); },
         .shapes = {{{7}}, {{3, 19}}, {{0, 3}}, {{5, 211}}},
         .low = -14,
         .high = 14,
         .activations = {0}});
  }
}

// Where a formula changes, derivatives are those of PyTorch.
TEST(Activation, DerivativesWhereFormulasChange) {
  const auto derivatives = [](const char* name, const std::vector<float>& at) {
    Tensor x = Tensor::FromVector(at).To(CheckedDevice()).SetRequiresGrad(true);
    Backward(Activation(x, ParseActivation(name)),
             Tensor::Full(x.shape(), 1, x.dtype(), x.device()));
    return x.grad().ToVector<float>();
  };
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  using Floats = std::vector<float>;
  // 16 elements and more fill a register, for which GELU's kernels have code of their own.
  EXPECT_EQ(derivatives("gelu_10", Floats(21, 10)), Floats(21, 0));
  EXPECT_EQ(derivatives("relu2", {-1, -0.0f, 0, 3}), Floats({0, 0, 0, 6}));
  EXPECT_EQ(derivatives("relu6", {-1, -0.0f, 0, 3, 6, 7}), Floats({0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(derivatives("leaky_relu", {-1, -0.0f, 0, 3}), Floats({0.01f, 0.01f, 0.01f, 1}));
  EXPECT_EQ(derivatives("mish", {20, 21, 1e30f}), Floats({1, 1, 1}));
}

TEST(Activation, UnknownNamesAreRefused) {
  try {
    ParseActivation("step");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "unknown activation \"step\"");
    EXPECT_EQ(error.hint(),
              "known activations: gelu, gelu_python, gelu_new, gelu_pytorch_tanh, "
              "gelu_python_tanh, gelu_accurate, gelu_fast, gelu_10, quick_gelu, relu, relu2, "
              "relu6, leaky_relu, mish, sigmoid, tanh, silu, swish, linear");
  }
}

}  // namespace
}  // namespace lathe
