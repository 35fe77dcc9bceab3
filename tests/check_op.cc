#include "lathe/tests/check_op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "lathe/core/autograd.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/cast.h"

namespace lathe {
namespace {

// Returns true if ops run on a GPU, not on the host or on the emulated device.
bool OnGpu() { return !CheckedDevice().is_cpu() && !IsCheckedDeviceEmulated(); }

using Values = std::vector<double>;
using OpFunction = std::function<Tensor(const Tensors&)>;

enum class Inputs { kLeaves, kLeavesTwice, kComputed };

// Returns uniform numbers in [-1, 1), rounded to float32 so that both precisions start from the
// same numbers.
Values Draw(const std::string& name, uint32_t stream, int64_t n) {
  const uint64_t key = HashName(name);
  Values values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const PhiloxBlock block =
        Philox4x32({{static_cast<uint32_t>(i), stream, 0, 0}}, static_cast<uint32_t>(key),
                   static_cast<uint32_t>(key >> 32));
    values[i] = static_cast<float>(block.v[0] * 0x1p-31 - 1);
  }
  return values;
}

Tensor MakeTensor(const Values& values, const Shape& shape, DType dtype) {
  return Tensor::FromVector(values, shape).To(dtype);
}

Values ToValues(const Tensor& t) { return t.To(DType::kF64).ToVector<double>(); }

Tensor Identity(const Tensor& x) {
  return Record("identity", x.Detach(), {x}, {},
                [](BackwardContext& context) { context.SetGrad(0, context.grad_output()); });
}

struct Result {
  Shape shape;
  Values values;
  std::vector<Values> grads;  // empty if none was asked for
};

class Checker {
 public:
  Checker(const OpCase& op_case, const std::vector<Shape>& shapes)
      : case_(op_case), shapes_(shapes) {
    needs_grad_ = case_.needs_grad;
    if (needs_grad_.empty()) needs_grad_.assign(shapes.size(), true);
    for (size_t i = 0; i < shapes.size(); ++i) {
      Values values = Draw(case_.name, static_cast<uint32_t>(i), NumElements(shapes[i]));
      for (double& v : values) {
        v = static_cast<float>(case_.low + (v + 1) / 2 * (case_.high - case_.low));
      }
      inputs_.push_back(std::move(values));
    }
  }

  void CheckAll() {
    const OpFunction& reference = case_.composed ? case_.composed : case_.op;
    const Result expected = Run(reference, inputs_, DType::kF64, needs_grad_);
    const Result single = Run(case_.op, inputs_, DType::kF32, needs_grad_);
    Compare("float32", single, expected, case_.tolerance, case_.grad_tolerance);
    if (!device_.is_cpu()) {
      if (std::find(needs_grad_.begin(), needs_grad_.end(), true) != needs_grad_.end()) {
        CheckWaysToTheGradient(single);
      }
      if (!case_.activations.empty()) {
        CheckNarrow(reference, DType::kBF16, case_.bfloat16_tolerance);
        CheckNarrow(reference, DType::kF16, case_.float16_tolerance);
      }
      if (case_.extremes) CheckExtremes(reference);
      if (case_.nan_check) CheckNaN(reference);
      return;
    }
    if (case_.float64 && case_.composed) {
      Compare("float64 against composed", Run(case_.op, inputs_, DType::kF64, needs_grad_),
              expected, 1e-10, 1e-10);
    }
    if (std::find(needs_grad_.begin(), needs_grad_.end(), true) != needs_grad_.end()) {
      CheckWaysToTheGradient(single);
      CheckDifferences(case_.float64 ? case_.op : reference);
    }
    if (!case_.activations.empty()) {
      CheckNarrow(reference, DType::kBF16, case_.bfloat16_tolerance);
    }
    if (case_.extremes) CheckExtremes(reference);
    if (case_.nan_check) CheckNaN(reference);
  }

 private:
  // Returns the op's value and the gradients of sum(output * cotangent).
  Result Run(const OpFunction& op, const std::vector<Values>& inputs, DType dtype,
             const std::vector<bool>& needs_grad, Inputs how = Inputs::kLeaves,
             std::optional<DType> narrow = {}) {
    const Device device = dtype == DType::kF64 ? Device{} : device_;
    Tensors leaves, before;
    for (size_t i = 0; i < inputs.size(); ++i) {
      leaves.push_back(MakeTensor(inputs[i], shapes_[i], dtype).To(device));
      before.push_back(leaves[i].Clone());
      leaves[i].SetRequiresGrad(needs_grad[i]);
    }
    Result result;
    const bool any = std::find(needs_grad.begin(), needs_grad.end(), true) != needs_grad.end();
    for (int pass = 0; pass < (how == Inputs::kLeavesTwice ? 2 : 1); ++pass) {
      Tensors x;
      for (const Tensor& leaf : leaves)
        x.push_back(how == Inputs::kComputed ? Identity(leaf) : leaf);
      if (narrow) {
        for (size_t i : case_.activations) x[i] = Cast(x[i], *narrow);
      }
      Tensor y = op(x);
      EXPECT_EQ(y.device(), device);
      if (narrow) {
        EXPECT_EQ(y.dtype(), *narrow);
        y = Cast(y, DType::kF32);
      }
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.requires_grad(), any);
      result.shape = y.shape();
      result.values = ToValues(y);
      if (any) {
        Backward(y, MakeTensor(Draw(case_.name, 1000, y.numel()), y.shape(), dtype).To(device));
      }
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      const Tensor now = leaves[i].To(Device{}), then = before[i].To(Device{});
      EXPECT_TRUE(now.numel() == 0 || std::memcmp(now.raw_data(), then.raw_data(),
                                                  static_cast<size_t>(then.bytes())) == 0)
          << "input " << i << " was modified";
      result.grads.emplace_back();
      if (!needs_grad[i]) {
        EXPECT_FALSE(leaves[i].grad().defined()) << "input " << i << " wants no gradient";
        continue;
      }
      const Tensor grad = leaves[i].grad();
      EXPECT_TRUE(grad.defined()) << "input " << i << " got no gradient";
      if (!grad.defined()) continue;
      EXPECT_EQ(grad.shape(), shapes_[i]);
      result.grads[i] = ToValues(grad);
    }
    return result;
  }

  static void ExpectClose(const std::string& what, const Values& actual, const Values& expected,
                          double tolerance) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    double largest = 0;
    for (double v : expected)
      largest = std::isfinite(v) ? std::max(largest, std::fabs(v)) : largest;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
      if (expected[i] == actual[i]) continue;  // infinities
      ASSERT_LE(std::fabs(actual[i] - expected[i]), tolerance * (1 + largest))
          << what << ", element " << i << ": " << actual[i] << ", expected " << expected[i];
    }
  }

  static void Compare(const std::string& what, const Result& actual, const Result& expected,
                      double tolerance, double grad_tolerance) {
    EXPECT_EQ(actual.shape, expected.shape) << what;
    ExpectClose(what + " value", actual.values, expected.values, tolerance);
    for (size_t i = 0; i < actual.grads.size(); ++i) {
      ExpectClose(what + " gradient of input " + std::to_string(i), actual.grads[i],
                  expected.grads[i], grad_tolerance);
    }
  }

  void CheckWaysToTheGradient(const Result& all) {
    Result doubled = all;
    for (Values& grad : doubled.grads) {
      for (double& v : grad) v *= 2;
    }
    // On a device a product may take another algorithm if it adds to its result, or if there is one
    // gradient to compute.
    const double tolerance = OnGpu() ? 5e-6 : 1e-6;
    Compare("two passes", Run(case_.op, inputs_, DType::kF32, needs_grad_, Inputs::kLeavesTwice),
            doubled, tolerance, tolerance);
    Compare("computed inputs", Run(case_.op, inputs_, DType::kF32, needs_grad_, Inputs::kComputed),
            all, tolerance, tolerance);
    for (size_t i = 0; i < inputs_.size() && inputs_.size() > 1; ++i) {
      if (!needs_grad_[i]) continue;
      std::vector<bool> only(inputs_.size(), false);
      only[i] = true;
      const Result alone = Run(case_.op, inputs_, DType::kF32, only);
      ExpectClose("gradient of input " + std::to_string(i) + " alone", alone.grads[i], all.grads[i],
                  tolerance);
    }
  }

  // Runs the op with activations in a narrow dtype. Compares with the reference on the same rounded
  // inputs.
  void CheckNarrow(const OpFunction& reference, DType dtype, double tolerance) {
    std::vector<Values> inputs = inputs_;
    for (size_t i : case_.activations) {
      inputs[i] = ToValues(MakeTensor(inputs[i], shapes_[i], dtype));
    }
    Compare(ToString(dtype),
            Run(case_.op, inputs, DType::kF32, needs_grad_, Inputs::kLeaves, dtype),
            Run(reference, inputs, DType::kF64, needs_grad_), tolerance, tolerance);
  }

  // Compares gradients with (f(x + h) - f(x - h)) / 2h for f = sum(output * cotangent), in float64.
  void CheckDifferences(const OpFunction& op) {
    constexpr size_t kMostElements = 48;  // per input; larger ones are sampled
    const Result analytic = Run(op, inputs_, DType::kF64, needs_grad_);
    const Values cotangent = Draw(case_.name, 1000, static_cast<int64_t>(analytic.values.size()));
    NoGradGuard no_grad;
    const auto value_at = [&](const std::vector<Values>& at) {
      Tensors x;
      for (size_t i = 0; i < at.size(); ++i) x.push_back(Tensor::FromVector(at[i], shapes_[i]));
      return ToValues(op(x));
    };
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!needs_grad_[i] || analytic.grads[i].empty()) continue;
      const size_t step = std::max<size_t>(1, inputs_[i].size() / kMostElements);
      Values numeric, exact;
      for (size_t j = 0; j < inputs_[i].size(); j += step) {
        const double h = 1e-5 * std::max(1.0, std::fabs(inputs_[i][j]));
        std::vector<Values> plus = inputs_, minus = inputs_;
        plus[i][j] += h;
        minus[i][j] -= h;
        const Values above = value_at(plus), below = value_at(minus);
        double difference = 0;  // summed element by element: the large common part cancels first
        for (size_t k = 0; k < above.size(); ++k)
          difference += (above[k] - below[k]) * cotangent[k];
        numeric.push_back(difference / (plus[i][j] - minus[i][j]));
        exact.push_back(analytic.grads[i].at(j));
      }
      ExpectClose("central differences of input " + std::to_string(i), exact, numeric,
                  case_.difference_tolerance);
    }
  }

  void CheckExtremes(const OpFunction& reference) {
    for (double magnitude : {1e4, 1e-30, -0.0}) {
      if (magnitude == 0 && case_.low > 0) continue;
      SCOPED_TRACE("magnitude " + std::to_string(magnitude));
      std::vector<Values> inputs;
      for (size_t i = 0; i < shapes_.size(); ++i) {
        inputs.push_back(
            Draw(case_.name, 2000 + static_cast<uint32_t>(i), NumElements(shapes_[i])));
        for (double& v : inputs[i]) {
          v = magnitude == 0 ? -0.0 : static_cast<float>(v * magnitude);
          if (case_.low >= 0) v = std::fabs(v);
        }
      }
      const Result expected = Run(reference, inputs, DType::kF64, needs_grad_);
      const Result actual = Run(case_.op, inputs, DType::kF32, needs_grad_);
      ExpectFinite("value", actual.values, expected.values);
      for (size_t i = 0; i < actual.grads.size(); ++i) {
        ExpectFinite("gradient of input " + std::to_string(i), actual.grads[i], expected.grads[i]);
      }
    }
  }

  static void ExpectFinite(const std::string& what, const Values& actual, const Values& expected) {
    constexpr double kLargest = std::numeric_limits<float>::max() / 16;
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (!std::isfinite(expected[i]) || std::fabs(expected[i]) > kLargest) continue;
      ASSERT_TRUE(std::isfinite(actual[i]))
          << what << ", element " << i << ": " << actual[i] << ", expected " << expected[i];
    }
  }

  void CheckNaN(const OpFunction& reference) {
    const std::vector<bool> none(inputs_.size(), false);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].empty()) continue;
      SCOPED_TRACE("NaN in input " + std::to_string(i));
      std::vector<Values> inputs = inputs_;
      inputs[i][inputs[i].size() / 2] = std::numeric_limits<double>::quiet_NaN();
      const Values expected = Run(reference, inputs, DType::kF64, none).values;
      const Values actual = Run(case_.op, inputs, DType::kF32, none).values;
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t k = 0; k < actual.size(); ++k) {
        ASSERT_EQ(std::isnan(actual[k]), std::isnan(expected[k])) << "element " << k;
      }
      std::fill(inputs[i].begin(), inputs[i].end(), std::numeric_limits<double>::quiet_NaN());
      const Values all = Run(case_.op, inputs, DType::kF32, none).values;
      EXPECT_TRUE(all.empty() ||
                  std::any_of(all.begin(), all.end(), [](double v) { return std::isnan(v); }))
          << "NaN was lost";
    }
  }

  const OpCase& case_;
  const std::vector<Shape>& shapes_;
  const Device device_ = CheckedDevice();
  std::vector<bool> needs_grad_;
  std::vector<Values> inputs_;
};

}  // namespace

std::string WhyNoCheckedDevice() {
  if (CheckedDevice().is_cpu()) return "";
  DeviceBackend* backend = FindDeviceBackend();
  if (backend == nullptr) return "built without CUDA";
  return backend->Count() > 0 ? "" : "no GPU: " + backend->UnavailableReason();
}

bool IsCheckedDeviceEmulated() {
  return !CheckedDevice().is_cpu() && FindDeviceBackend()->DescribeBuild() == "emulated CUDA";
}

bool HasCheckedDevice() { return !CheckedDevice().is_cpu() && WhyNoCheckedDevice().empty(); }

void ExpectSameButForRounding(std::span<const float> actual, std::span<const float> expected,
                              DType dtype) {
  ASSERT_EQ(actual.size(), expected.size());
  const float rounding = !OnGpu()                ? 0
                         : dtype == DType::kBF16 ? 0x1p-8f
                         : dtype == DType::kF16  ? 0x1p-11f
                                                 : 0x1p-24f;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 4 * rounding * (1 + std::fabs(expected[i])))
        << "element " << i;
  }
}

void CheckOp(const OpCase& op_case) {
  SCOPED_TRACE(op_case.name);
  EXPECT_FALSE(op_case.shapes.empty());
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  for (const std::vector<Shape>& shapes : op_case.shapes) {
    std::string trace = "inputs";
    for (const Shape& shape : shapes) trace += " " + ToString(shape);
    SCOPED_TRACE(trace);
    Checker(op_case, shapes).CheckAll();
  }
}

}  // namespace lathe
