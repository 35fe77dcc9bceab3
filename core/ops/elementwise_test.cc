#include "lathe/core/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
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
           .activations = {0, 1}});
  CheckOp({.name = "sub",
           .op = [](const Tensors& x) { return Sub(x[0], x[1]); },
           .composed = [](const Tensors& x) { return Add(x[0], Scale(x[1], -1)); },
           .shapes = kBinary,
           .activations = {0, 1}});
  CheckOp({.name = "mul",
           .op = [](const Tensors& x) { return Mul(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1}});
  CheckOp({.name = "square",
           .op = [](const Tensors& x) { return Mul(x[0], x[0]); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "div",
           .op = [](const Tensors& x) { return Div(x[0], x[1]); },
           .shapes = kBinary,
           .low = 0.5,
           .activations = {0, 1}});
  CheckOp({.name = "pow",
           .op = [](const Tensors& x) { return Pow(x[0], x[1]); },
           .composed = [](const Tensors& x) { return Exp(Mul(x[1], Log(x[0]))); },
           .shapes = kBinary,
           .low = 0.5,
           .extremes = false,  // the composed formula has no value at 0
           .activations = {0, 1}});
  CheckOp({.name = "maximum",
           .op = [](const Tensors& x) { return Maximum(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1}});
  CheckOp({.name = "minimum",
           .op = [](const Tensors& x) { return Minimum(x[0], x[1]); },
           .shapes = kBinary,
           .activations = {0, 1}});
}

// It is long because it has a case for each op.
TEST(Elementwise, Unary) {
  CheckOp({.name = "scale",
           .op = [](const Tensors& x) { return Scale(x[0], -2.5); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "add_scalar",
           .op = [](const Tensors& x) { return AddScalar(x[0], 0.3); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "exp",
           .op = [](const Tensors& x) { return Exp(x[0]); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "log",
           .op = [](const Tensors& x) { return Log(x[0]); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0}});
  CheckOp({.name = "sqrt",
           .op = [](const Tensors& x) { return Sqrt(x[0]); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0}});
  CheckOp({.name = "tanh",
           .op = [](const Tensors& x) { return Tanh(x[0]); },
           .composed =
               [](const Tensors& x) { return AddScalar(Scale(Sigmoid(Scale(x[0], 2)), 2), -1); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "sigmoid",
           .op = [](const Tensors& x) { return Sigmoid(x[0]); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "erf",
           .op = [](const Tensors& x) { return Erf(x[0]); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "relu",
           .op = [](const Tensors& x) { return Relu(x[0]); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "neg",
           .op = [](const Tensors& x) { return Neg(x[0]); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "abs",
           .op = [](const Tensors& x) { return Abs(x[0]); },
           .composed = [](const Tensors& x) { return Add(Relu(x[0]), Relu(Neg(x[0]))); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "clamp",
           .op = [](const Tensors& x) { return Clamp(x[0], {.min = -0.75, .max = 1.125}); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "clamp_below",
           .op = [](const Tensors& x) { return Clamp(x[0], {.min = 0.125}); },
           .shapes = kUnary,
           .activations = {0}});
  for (const double exponent : {2.0, 3.0, -1.0, 1.0, 0.0}) {
    CheckOp({.name = "pow_scalar",
             .op = [=](const Tensors& x) { return Pow(x[0], exponent); },
             .shapes = kUnary,
             .low = exponent < 0 ? 0.5 : -2,
             .nan_check = exponent != 0,  // x^0 is 1, whatever x is
             .activations = {0}});
  }
  CheckOp({.name = "pow_root",
           .op = [](const Tensors& x) { return Pow(x[0], 0.5); },
           .composed = [](const Tensors& x) { return Sqrt(x[0]); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0}});
  CheckOp({.name = "div_scalar",
           .op = [](const Tensors& x) { return Div(x[0], 3.0); },
           .shapes = kUnary,
           .activations = {0}});
  CheckOp({.name = "scalar_div",
           .op = [](const Tensors& x) { return Div(3.0, x[0]); },
           .composed = [](const Tensors& x) { return Scale(Exp(Scale(Log(x[0]), -1)), 3); },
           .shapes = kUnary,
           .low = 0.5,
           .activations = {0}});
}

bool HasDevice() {
  DeviceBackend* backend = FindDeviceBackend();
  return !CheckedDevice().is_cpu() && backend != nullptr && backend->Count() > 0;
}

// In bfloat16 and float16 an op computes in float32 and rounds once. Only devices have float16.
TEST(Elementwise, NarrowIsRoundedOnce) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
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
  std::vector<DType> dtypes = {DType::kBF16};
  if (!CheckedDevice().is_cpu()) dtypes.push_back(DType::kF16);
  for (const DType dtype : dtypes) {
    for (const int64_t columns : {1, 5, 64, 4099}) {
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

// A narrow number is compared with a rounded limit, as in PyTorch, so it can lie on that.
TEST(Elementwise, NarrowClamp) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  Tensor x = Tensor::FromVector<float>({0.3f, 0.31f, 0.298f}).To(DType::kBF16).To(CheckedDevice());
  x.SetRequiresGrad(true);
  Backward(Clamp(x, {.min = 0.3}), Tensor::Full({3}, 1, DType::kBF16, CheckedDevice()));
  EXPECT_EQ(x.grad().To(DType::kF32).ToVector<float>(), (std::vector<float>{0, 1, 0}));
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
