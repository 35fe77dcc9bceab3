#include "lathe/core/ops/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

const std::vector<std::vector<Shape>> kUnary = {{{5}},    {{2, 3, 4}},  {{}},
                                                {{0, 3}}, {{150, 130}}, {{7, 37}}};
const std::vector<std::vector<Shape>> kBinary = {
    {{4, 3}, {4, 3}},          {{4, 3}, {3}},          {{3}, {4, 3}},
    {{4, 3}, {4, 1}},          {{4, 1}, {1, 3}},       {{2, 4, 3}, {}},
    {{2, 1, 3}, {4, 1}},       {{2, 4, 3}, {2, 1, 1}}, {{0, 3}, {3}},
    {{0, 3}, {0, 3}},          {{150, 130}, {130}},    {{2, 3, 1}, {1, 1}},
    {{2, 3, 2, 3}, {3, 1, 3}}, {{300, 5}, {300, 1}},   {{33, 5, 3}, {1, 5, 1}}};

TEST(Elementwise, Binary) {
  CheckOp({.name = "add",
           .op = [](const Tensors& x) { return Add(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1},
           .narrow_on_host = false});
  CheckOp({.name = "sub",
           .op = [](const Tensors& x) { return Sub(x[0], x[1]); },
           .composed = [](const Tensors& x) { return Add(x[0], Scale(x[1], -1)); },
           .shapes = kBinary,
           .activations = {0, 1},
           .narrow_on_host = false});
  CheckOp({.name = "mul",
           .op = [](const Tensors& x) { return Mul(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1},
           .narrow_on_host = false});
  CheckOp({.name = "square",
           .op = [](const Tensors& x) { return Mul(x[0], x[0]); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "div",
           .op = [](const Tensors& x) { return Div(x[0], x[1]); },
           .shapes = kBinary,
           .low = 0.5,
           .activations = {0, 1},
           .narrow_on_host = false});
  CheckOp({.name = "pow",
           .op = [](const Tensors& x) { return Pow(x[0], x[1]); },
           .composed = [](const Tensors& x) { return Exp(Mul(x[1], Log(x[0]))); },
           .shapes = kBinary,
           .low = 0.5,
           .extremes = false,  // the composed formula has no value at 0
           .activations = {0, 1},
           .narrow_on_host = false});
  CheckOp({.name = "maximum",
           .op = [](const Tensors& x) { return Maximum(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1},
           .narrow_on_host = false});
  CheckOp({.name = "minimum",
           .op = [](const Tensors& x) { return Minimum(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1},
           .narrow_on_host = false});
}

TEST(Elementwise, Unary) {
  CheckOp({.name = "scale",
           .op = [](const Tensors& x) { return Scale(x[0], -2.5); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "add_scalar",
           .op = [](const Tensors& x) { return AddScalar(x[0], 0.3); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "exp",
           .op = [](const Tensors& x) { return Exp(x[0]); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "log",
           .op = [](const Tensors& x) { return Log(x[0]); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "sqrt",
           .op = [](const Tensors& x) { return Sqrt(x[0]); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "tanh",
           .op = [](const Tensors& x) { return Tanh(x[0]); },
           .composed =
               [](const Tensors& x) { return AddScalar(Scale(Sigmoid(Scale(x[0], 2)), 2), -1); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "sigmoid",
           .op = [](const Tensors& x) { return Sigmoid(x[0]); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "erf",
           .op = [](const Tensors& x) { return Erf(x[0]); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "relu",
           .op = [](const Tensors& x) { return Relu(x[0]); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "neg",
           .op = [](const Tensors& x) { return Neg(x[0]); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "abs",
           .op = [](const Tensors& x) { return Abs(x[0]); },
           .composed = [](const Tensors& x) { return Add(Relu(x[0]), Relu(Neg(x[0]))); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "clamp",
           .op = [](const Tensors& x) { return Clamp(x[0], {.min = -0.7, .max = 1.1}); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "clamp_below",
           .op = [](const Tensors& x) { return Clamp(x[0], {.min = 0.1}); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  for (const double exponent : {2.0, 3.0, -1.0, 1.0, 0.0}) {
    CheckOp({.name = "pow_scalar",
             .op = [=](const Tensors& x) { return Pow(x[0], exponent); },
             .shapes = kUnary,
             .low = exponent < 0 ? 0.5 : -2,
             .nan_check = exponent != 0,  // x^0 is 1, whatever x is
             .activations = {0},
             .narrow_on_host = false});
  }
  CheckOp({.name = "pow_root",
           .op = [](const Tensors& x) { return Pow(x[0], 0.5); },
           .composed = [](const Tensors& x) { return Sqrt(x[0]); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "div_scalar",
           .op = [](const Tensors& x) { return Div(x[0], 3.0); },
           .shapes = kUnary,
           .activations = {0},
           .narrow_on_host = false});
  CheckOp({.name = "scalar_div",
           .op = [](const Tensors& x) { return Div(3.0, x[0]); },
           .composed = [](const Tensors& x) { return Scale(Exp(Scale(Log(x[0]), -1)), 3); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0},
           .narrow_on_host = false});
}

// Where both elements are equal each gets half of the gradient. Elsewhere, and for a NaN, PyTorch's
// rules hold as well.
TEST(Elementwise, Ties) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto gradients = [](auto op, const std::vector<float>& a, const std::vector<float>& b) {
    Tensor x = Tensor::FromVector(a).SetRequiresGrad(true);
    Tensor y = Tensor::FromVector(b).SetRequiresGrad(true);
    Backward(op(x, y), Tensor::Full({x.dim(0)}, 2));
    return std::pair(x.grad().ToVector<float>(), y.grad().ToVector<float>());
  };
  using Pair = std::pair<std::vector<float>, std::vector<float>>;
  EXPECT_EQ(gradients(Maximum, {1, 2, 3, nan}, {1, 3, 2, 0}), Pair({1, 0, 2, 2}, {1, 2, 0, 2}));
  EXPECT_EQ(gradients(Minimum, {1, 2, 3, nan}, {1, 3, 2, 0}), Pair({1, 2, 0, 2}, {1, 0, 2, 2}));
  EXPECT_EQ(gradients(
                [](const Tensor& x, const Tensor& y) {
                  return Add(Clamp(x, {-1, 1}), Abs(y));
                },
                {-1, 1, 1.5, nan}, {0, 1, -1, 2}),
            Pair({0, 0, 0, 0}, {0, 2, -2, 2}));
  EXPECT_EQ(gradients([](const Tensor& x, const Tensor& y) { return Pow(x, y); }, {0, 0, 2, 1},
                      {0, 2, 0, 3}),
            Pair({0, 0, 0, 6}, {0, 0, 2 * std::log(2.0f), 0}));
}

TEST(Elementwise, NewValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::FromVector<float>({-2, 0, 3, nan});
  const auto same = [](const Tensor& y, const std::vector<float>& expected) {
    const std::vector<float> values = y.ToVector<float>();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i])))
          << i << ": " << values[i] << ", expected " << expected[i];
    }
  };
  same(Abs(x), {2, 0, 3, nan});
  same(Clamp(x, {.max = 1}), {-2, 0, 1, nan});
  same(Clamp(x, {.min = 5, .max = 1}), {1, 1, 1, nan});
  same(Pow(x, 3), {-8, 0, 27, nan});
  same(Pow(x, 0), {1, 1, 1, 1});
  same(Maximum(x, Tensor::FromVector<float>({1, nan, 1, 1})), {1, nan, 3, nan});
  same(Minimum(x, Tensor::FromVector<float>({1, nan, 1, 1})), {-2, nan, 1, nan});
  same(SameMask(x, Tensor::FromVector<float>({-2, 1, 3, nan})), {1, 0, 1, 1});
}

TEST(Elementwise, BroadcastValues) {
  const Tensor column = Tensor::FromVector<float>({10, 20}, {2, 1});
  const Tensor row = Tensor::FromVector<float>({1, 2, 3});
  EXPECT_EQ(Add(column, row).ToVector<float>(), (std::vector<float>{11, 12, 13, 21, 22, 23}));
  EXPECT_EQ(Sub(row, column).ToVector<float>(), (std::vector<float>{-9, -8, -7, -19, -18, -17}));
}

TEST(Elementwise, UnaryValues) {
  EXPECT_EQ(Sigmoid(Tensor::FromVector<float>({-1e4f, 0, 1e4f})).ToVector<float>(),
            (std::vector<float>{0, 0.5, 1}));
  EXPECT_EQ(Relu(Tensor::FromVector<float>({-1, 0, 2})).ToVector<float>(),
            (std::vector<float>{0, 0, 2}));
  EXPECT_TRUE(std::isnan(Log(Tensor::FromVector<float>({-1})).Item()));
}

// All of float32 that matters to a function: both signs of each magnitude, the numbers around the
// places where results become infinite, subnormal or 1, and what is no number.
std::vector<float> ManyFloats() {
  std::vector<float> values = {0, std::numeric_limits<float>::infinity(), 1e-45f};
  for (float x = 1e-38f; x < 3e38f; x *= 1.0037f) values.push_back(x);
  for (float x = 0; x < 110; x += 0.00731f) values.push_back(x);
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  return values;
}

// The kernels' own formulas beside the standard library's in double.
TEST(Elementwise, FunctionsOfManyFloats) {
  struct Case {
    const char* name;
    Tensor (*op)(const Tensor&);
    double (*exact)(double);
    double tolerance;  // relative
    double near_zero;  // the absolute error of subnormal results
  };
  const double few_units = 5e-45;
  const Case cases[] = {
      {"exp", Exp, std::exp, 3e-7, few_units},
      {"tanh", Tanh, std::tanh, 4e-7, few_units},
      // e^-x overflows where the result is subnormal, which is 0 then.
      {"sigmoid", Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 4e-7, 1.2e-38},
      {"erf", Erf, std::erf, 4e-7, few_units},
  };
  const std::vector<float> x = ManyFloats();
  for (const Case& c : cases) {
    const std::vector<float> y = c.op(Tensor::FromVector(x)).ToVector<float>();
    for (size_t i = 0; i < x.size(); ++i) {
      const float exact = static_cast<float>(c.exact(double{x[i]}));
      SCOPED_TRACE(std::string(c.name) + " of " + std::to_string(x[i]));
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else if (std::isinf(exact) || std::isinf(y[i])) {
        // A result next to infinity may be rounded to it.
        ASSERT_TRUE(y[i] == exact || (y[i] > 3.4028e38f && exact > 3.4028e38f));
      } else {
        ASSERT_NEAR(y[i], exact, std::max(c.tolerance * std::fabs(exact), c.near_zero));
      }
    }
  }
}

// Operands that repeat in each way, with rows of few and of many elements.
TEST(Elementwise, BroadcastOfManyRows) {
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{9001, 3}, {3}},       {{9001, 3}, {9001, 1}}, {{3}, {9001, 3}},
      {{9001, 1}, {9001, 3}}, {{1, 7}, {4000, 1}},    {{5, 1, 2000}, {5, 9, 1}},
      {{31, 1, 40}, {50, 1}}, {{2, 30, 400}, {}},     {{4, 1, 3, 1}, {1, 2000, 1, 5}}};
  for (const auto& [a_shape, b_shape] : cases) {
    SCOPED_TRACE(ToString(a_shape) + " and " + ToString(b_shape));
    const auto filled = [](const Shape& shape, size_t factor) {
      std::vector<float> values(static_cast<size_t>(NumElements(shape)));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i * factor % 1009) - 500;
      return values;
    };
    const std::vector<float> a = filled(a_shape, 7), b = filled(b_shape, 11);
    const Tensor y = Sub(Tensor::FromVector(a, a_shape), Tensor::FromVector(b, b_shape));
    const Shape a_strides = BroadcastStrides(a_shape, y.shape());
    const Shape b_strides = BroadcastStrides(b_shape, y.shape());
    const std::vector<float> got = y.ToVector<float>();
    for (size_t i = 0; i < got.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i), at_a = 0, at_b = 0;
      for (int d = y.ndim() - 1; d >= 0; --d) {
        at_a += rest % y.dim(d) * a_strides[d];
        at_b += rest % y.dim(d) * b_strides[d];
        rest /= y.dim(d);
      }
      ASSERT_EQ(got[i], a[at_a] - b[at_b]) << i;
    }
  }
}

TEST(Elementwise, PowersByProducts) {
  const std::vector<float> x = {-3, -0.5f, 0, 0.25f, 7};
  for (const double exponent : {2.0, 3.0, 4.0}) {
    Tensor leaf = Tensor::FromVector(x).SetRequiresGrad(true);
    const Tensor y = Pow(leaf, exponent);
    Backward(y, Tensor::Full({5}, 1));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_FLOAT_EQ(y.ToVector<float>()[i], std::pow(x[i], static_cast<float>(exponent)));
      EXPECT_FLOAT_EQ(leaf.grad().ToVector<float>()[i],
                      static_cast<float>(exponent * std::pow(double{x[i]}, exponent - 1)));
    }
  }
}

bool HasDevice() {
  DeviceBackend* backend = FindDeviceBackend();
  return !CheckedDevice().is_cpu() && backend != nullptr && backend->Count() > 0;
}

// In bfloat16 and float16 a device computes in float32 and rounds once.
TEST(Elementwise, NarrowOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> ops = {
      [](const Tensor& a, const Tensor&) { return Scale(a, 0.3); },
      [](const Tensor& a, const Tensor&) { return Relu(a); },
      [](const Tensor& a, const Tensor&) { return Abs(a); },
      [](const Tensor& a, const Tensor&) {
        return Clamp(a, {-0.5, 0.5});
      },
      [](const Tensor& a, const Tensor& b) { return Maximum(a, b); },
      [](const Tensor& a, const Tensor& b) { return Sub(a, b); },
      [](const Tensor& a, const Tensor& b) { return Mul(b, a); }};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t columns : {1, 5, 64}) {
      std::vector<float> values;
      for (int64_t i = 0; i < 21 * columns; ++i) {
        values.push_back(static_cast<float>(std::sin(static_cast<double>(i))));
      }
      const Tensor a = Tensor::FromVector(values, {21, columns}).To(dtype);
      const Tensor b = a.Slice(3, 4).Clone();
      for (const auto& op : ops) {
        const Tensor expected = op(a.To(DType::kF32), b.To(DType::kF32)).To(dtype);
        const Tensor y = op(a.To(CheckedDevice()), b.To(CheckedDevice()));
        ASSERT_EQ(y.dtype(), dtype);
        EXPECT_EQ(y.To(Device{}).To(DType::kF32).ToVector<float>(),
                  expected.To(DType::kF32).ToVector<float>());
      }
    }
  }
}

// Slices at addresses that don't allow 16-byte loads give the host's results.
TEST(Elementwise, UnalignedOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  std::vector<float> values(1031);  // exact in every dtype
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 64);
  const auto floats = [](const Tensor& t) { return t.To(DType::kF32).ToVector<float>(); };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(ToString(dtype));
    const Tensor host = Tensor::FromVector(values), x = host.To(dtype).To(CheckedDevice());
    EXPECT_EQ(floats(Scale(x.Slice(1, 1030), 2)), floats(Scale(host.Slice(1, 1030), 2)));
    EXPECT_EQ(floats(Add(x.Slice(1, 1030), x.Slice(2, 1031))),
              floats(Add(host.Slice(1, 1030), host.Slice(2, 1031))));
  }
}

// The values and gradients of all ops are the same at addresses that don't allow 16-byte loads.
TEST(Elementwise, UnalignedAsAlignedOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  using Op = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::vector<std::pair<const char*, Op>> ops = {
      {"add", Add},
      {"sub", Sub},
      {"mul", Mul},
      {"div", [](const Tensor& a, const Tensor& b) { return Div(a, b); }},
      {"scale", [](const Tensor& a, const Tensor&) { return Scale(a, 0.3); }},
      {"add_scalar", [](const Tensor& a, const Tensor&) { return AddScalar(a, 0.3); }},
      {"exp", [](const Tensor& a, const Tensor&) { return Exp(a); }},
      {"log", [](const Tensor& a, const Tensor&) { return Log(a); }},
      {"sqrt", [](const Tensor& a, const Tensor&) { return Sqrt(a); }},
      {"tanh", [](const Tensor& a, const Tensor&) { return Tanh(a); }},
      {"sigmoid", [](const Tensor& a, const Tensor&) { return Sigmoid(a); }},
      {"erf", [](const Tensor& a, const Tensor&) { return Erf(a); }},
      {"relu", [](const Tensor& a, const Tensor&) { return Relu(a); }},
      {"pow", [](const Tensor& a, const Tensor& b) { return Pow(a, b); }},
      {"maximum", Maximum},
      {"minimum", Minimum},
      {"neg", [](const Tensor& a, const Tensor&) { return Neg(a); }},
      {"abs", [](const Tensor& a, const Tensor&) { return Abs(a); }},
      {"clamp",
       [](const Tensor& a, const Tensor&) {
         return Clamp(a, {0.6, 1});
       }},
      {"pow_scalar", [](const Tensor& a, const Tensor&) { return Pow(a, 1.5); }},
      {"div_scalar", [](const Tensor& a, const Tensor&) { return Div(a, 3.0); }},
      {"scalar_div", [](const Tensor& a, const Tensor&) { return Div(3.0, a); }}};
  constexpr int64_t kN = 61;
  std::vector<float> values(kN + 8);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5f + 0.02f * static_cast<float>(i);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor all = Tensor::FromVector(values).To(dtype).To(CheckedDevice());
    for (const auto& [name, op] : ops) {
      const auto run = [&, &of = op](bool aligned) {
        const auto part = [&](int64_t begin) {
          const Tensor slice = all.Slice(begin, begin + kN);
          return aligned ? slice.Clone() : slice.Detach();
        };
        Tensor a = part(1).SetRequiresGrad(true), b = part(3).SetRequiresGrad(true);
        const Tensor y = of(a, b);
        Backward(y, part(5));
        std::vector<std::vector<float>> results;
        for (const Tensor& t : {y.Detach(), a.grad(), b.grad()}) {
          results.push_back(t.defined() ? t.To(DType::kF32).ToVector<float>()
                                        : std::vector<float>());
        }
        return results;
      };
      SCOPED_TRACE(std::string(name) + " in " + ToString(dtype));
      const std::vector<std::vector<float>> unaligned = run(false), aligned = run(true);
      for (size_t i = 0; i < aligned.size(); ++i) {
        ExpectSameButForRounding(unaligned[i], aligned[i], dtype);
      }
    }
  }
}

// Filling, adding and scaling in place, by a number of the host or of the device, change exactly
// the target. This holds at addresses that don't allow 16-byte loads, too.
TEST(Elementwise, InPlaceOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  const auto& kernels = DeviceKernels<TensorKernels>();
  const Tensor half = Tensor::Full({}, 0.5, DType::kF32, CheckedDevice());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t begin : {0, 3}) {
      for (const int64_t n : {1, 5, 1030}) {
        SCOPED_TRACE(std::string(ToString(dtype)) + ", " + std::to_string(n) + " from " +
                     std::to_string(begin));
        std::vector<float> values(static_cast<size_t>(begin + n + 8));  // exact in every dtype
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 29) - 7;
        const Tensor all = Tensor::FromVector(values).To(dtype).To(CheckedDevice());
        std::vector<float> more(static_cast<size_t>(n));
        for (size_t i = 0; i < more.size(); ++i) more[i] = static_cast<float>(i % 5);
        const Tensor x = Tensor::FromVector(more).To(dtype).To(CheckedDevice());
        Tensor part = all.Slice(begin, begin + n);
        const auto expect = [&](const char* what, auto function) {
          for (int64_t i = 0; i < n; ++i) {
            float& v = values[static_cast<size_t>(begin + i)];
            v = function(v, more[static_cast<size_t>(i)]);
          }
          EXPECT_EQ(all.To(DType::kF32).ToVector<float>(), values) << what;
        };
        part.Fill(1);
        expect("fill", [](float, float) { return 1; });
        AddInPlace(part, x);
        expect("add", [](float v, float w) { return v + w; });
        kernels.scale(part.raw_data(), dtype, 2, n);
        expect("scale", [](float v, float) { return v * 2; });
        kernels.scale_by(part.raw_data(), dtype, half.data<float>(), n);
        expect("scale_by", [](float v, float) { return v / 2; });
      }
    }
  }
}

// Adding a row to all rows works for any address and stride and changes nothing between or around
// them.
TEST(Elementwise, AddRowOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, n, ld] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                      {33, 1, 1},
                                      {5, 1, 3},
                                      {1, 1030, 1030},
                                      {7, 40, 40},
                                      {7, 37, 45},
                                      {0, 4, 4},
                                      {3, 0, 2}}) {
      SCOPED_TRACE(testing::Message()
                   << ToString(dtype) << ", " << rows << " x " << n << ", " << ld << " apart");
      constexpr int64_t kBefore = 3;
      std::vector<float> values(static_cast<size_t>(kBefore + rows * ld + 8));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 29) - 7;
      std::vector<float> row(static_cast<size_t>(n));
      for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i % 11) + 1;
      const Tensor all = Tensor::FromVector(values).To(dtype).To(CheckedDevice());
      const Tensor there = Tensor::FromVector(row).To(CheckedDevice());
      DeviceKernels<TensorKernels>().add_row(
          static_cast<char*>(all.raw_data()) + kBefore * SizeOf(dtype), dtype, there.data<float>(),
          rows, n, ld);
      for (int64_t i = 0; i < rows * n; ++i) {
        values[static_cast<size_t>(kBefore + i / n * ld + i % n)] +=
            row[static_cast<size_t>(i % n)];
      }
      EXPECT_EQ(all.To(DType::kF32).ToVector<float>(), values);
    }
  }
}

TEST(Elementwise, ErrorsOnDevice) {
  if (!HasDevice()) GTEST_SKIP() << "no device";
  const Tensor x = Tensor::Zeros({2}, DType::kF32, CheckedDevice());
  EXPECT_THROW(Add(x, Tensor::Zeros({2})), Error);
  EXPECT_THROW(Exp(Tensor::Zeros({2}, DType::kF64, CheckedDevice())), Error);
}

TEST(Elementwise, Errors) {
  EXPECT_THROW(Add(Tensor::Zeros({2, 3}), Tensor::Zeros({2})), Error);
  EXPECT_THROW(Add(Tensor::Zeros({2}), Tensor::Zeros({2}, DType::kF64)), Error);
  EXPECT_THROW(Exp(Tensor::Zeros({2}, DType::kI64)), Error);
  EXPECT_THROW(Mul(Tensor::Zeros({2}), Tensor::Unallocated({2})), Error);
  EXPECT_THROW(Maximum(Tensor::Zeros({2, 3}), Tensor::Zeros({2})), Error);
  EXPECT_THROW(Clamp(Tensor::Zeros({2}), {.min = std::nan("")}), Error);
}

}  // namespace
}  // namespace lathe
