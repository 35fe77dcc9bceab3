// Compares mathematical ops with PyTorch's numbers: values, indices and gradients, in float32 and
// bfloat16. tests/golden/make_math_ops.py writes the cases. Runs on a GPU or the emulated device if
// the test links :check_op_on_device.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/ops.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

double Number(const Json& number) {
  if (number.is_number()) return number.get<double>();
  const std::string text = number.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return text == "inf" ? std::numeric_limits<double>::infinity()
                       : -std::numeric_limits<double>::infinity();
}

std::vector<double> Numbers(const Json& numbers) {
  std::vector<double> values;
  for (const Json& number : numbers) values.push_back(Number(number));
  return values;
}

Shape ShapeOf(const Json& sizes) {
  Shape shape;
  for (const Json& size : sizes) shape.push_back(size.get<int64_t>());
  return shape;
}

// The limit of the error, relative to 1 + the largest expected number. PyTorch's bfloat16 rounds in
// between where Lathe doesn't.
void ExpectClose(const Tensor& actual, const std::vector<double>& expected, double limit) {
  const std::vector<double> values = actual.To(Device{}).To(DType::kF64).ToVector<double>();
  ASSERT_EQ(values.size(), expected.size());
  double largest = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(values[i])) continue;
    if (expected[i] == values[i]) continue;
    ASSERT_LE(std::fabs(values[i] - expected[i]), limit * (1 + largest))
        << "element " << i << ": " << values[i] << ", expected " << expected[i];
  }
}

Tensors Both(const ValuesAndIndices& result) { return {result.values, result.indices}; }

using Op = std::function<Tensors(const Tensors&, const Json&)>;

// The ops by the names of the script. It is long because it is a table: one row for each op.
const std::map<std::string, Op>& Ops() {
  static const std::map<std::string, Op> ops = {
      {"matmul",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {Matmul(x[0], x[1], {.a = o.at("transpose_a"), .b = o.at("transpose_b")})};
       }},
      {"max",
       [](const Tensors& x, const Json& o) {
         return Both(Max(x[0], o.at("dim").get<int>(), o.at("keepdim")));
       }},
      {"min",
       [](const Tensors& x, const Json& o) {
         return Both(Min(x[0], o.at("dim").get<int>(), o.at("keepdim")));
       }},
      {"argmax",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {ArgMax(x[0], o.at("dim").get<int>(), o.at("keepdim"))};
       }},
      {"argmin",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {ArgMin(x[0], o.at("dim").get<int>(), o.at("keepdim"))};
       }},
      {"max_all", [](const Tensors& x, const Json&) -> Tensors { return {Max(x[0])}; }},
      {"min_all", [](const Tensors& x, const Json&) -> Tensors { return {Min(x[0])}; }},
      {"amax",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {AMax(x[0], o.at("dims").get<std::vector<int>>(), o.at("keepdim"))};
       }},
      {"amin",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {AMin(x[0], o.at("dims").get<std::vector<int>>(), o.at("keepdim"))};
       }},
      {"topk",
       [](const Tensors& x, const Json& o) {
         return Both(TopK(x[0], o.at("k"), o.at("dim"), o.at("largest")));
       }},
      {"variance",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {Variance(x[0], o.at("dims").get<std::vector<int>>(),
                          {.correction = o.at("correction"), .keepdim = o.at("keepdim")})};
       }},
      {"sum",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {Sum(x[0], o.at("dims").get<std::vector<int>>(), o.at("keepdim"))};
       }},
      {"mean",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {Mean(x[0], o.at("dims").get<std::vector<int>>(), o.at("keepdim"))};
       }},
      {"softmax",
       [](const Tensors& x, const Json& o) -> Tensors { return {Softmax(x[0], o.at("dim"))}; }},
      {"log_softmax",
       [](const Tensors& x, const Json& o) -> Tensors { return {LogSoftmax(x[0], o.at("dim"))}; }},
      {"clamp",
       [](const Tensors& x, const Json& o) -> Tensors {
         const ClampOptions none;
         return {Clamp(x[0], {.min = o.value("min", none.min), .max = o.value("max", none.max)})};
       }},
      {"pow_scalar",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {Pow(x[0], o.at("exponent").get<double>())};
       }},
      {"pow", [](const Tensors& x, const Json&) -> Tensors { return {Pow(x[0], x[1])}; }},
      {"abs", [](const Tensors& x, const Json&) -> Tensors { return {Abs(x[0])}; }},
      {"neg", [](const Tensors& x, const Json&) -> Tensors { return {-x[0]}; }},
      {"maximum", [](const Tensors& x, const Json&) -> Tensors { return {Maximum(x[0], x[1])}; }},
      {"minimum", [](const Tensors& x, const Json&) -> Tensors { return {Minimum(x[0], x[1])}; }},
      {"scale",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {x[0] * o.at("scalar").get<double>()};
       }},
      {"add_scalar",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {x[0] + o.at("scalar").get<double>()};
       }},
      {"div_scalar",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {x[0] / o.at("scalar").get<double>()};
       }},
      {"scalar_div",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {o.at("scalar").get<double>() / x[0]};
       }},
      {"conv1d",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {Conv1d(x[0], x[1], x[2],
                        {.stride = o.at("stride"),
                         .padding = o.at("padding"),
                         .dilation = o.at("dilation"),
                         .groups = o.at("groups")})};
       }},
      {"max_pool1d",
       [](const Tensors& x, const Json& o) -> Tensors {
         return {MaxPool1d(x[0], {.kernel_size = o.at("kernel_size"),
                                  .stride = o.at("stride"),
                                  .padding = o.at("padding"),
                                  .dilation = o.at("dilation")})};
       }},
      {"avg_pool1d", [](const Tensors& x, const Json& o) -> Tensors {
         return {AvgPool1d(x[0], {.kernel_size = o.at("kernel_size"),
                                  .stride = o.at("stride"),
                                  .padding = o.at("padding"),
                                  .count_include_pad = o.at("count_include_pad")})};
       }}};
  return ops;
}

const std::map<std::string, Tensor (*)(const Tensor&)> kUnary = {
    {"exp", Exp}, {"log", Log},   {"sqrt", Sqrt},   {"tanh", Tanh},    {"sigmoid", Sigmoid},
    {"erf", Erf}, {"relu", Relu}, {"sum_all", Sum}, {"mean_all", Mean}};
const std::map<std::string, Tensor (*)(const Tensor&, const Tensor&)> kBinary = {
    {"add", Add}, {"sub", Sub}, {"mul", Mul}, {"div", Div}};

Tensors Call(const std::string& name, const Tensors& x, const Json& options) {
  if (const auto op = kUnary.find(name); op != kUnary.end()) return {op->second(x[0])};
  if (const auto op = kBinary.find(name); op != kBinary.end()) return {op->second(x[0], x[1])};
  return Ops().at(name)(x, options);
}

// Ops that round once in bfloat16, PyTorch's and ours. Then results are the same or neighbours.
const std::set<std::string> kRoundOnce = {
    "clamp",      "abs", "neg", "maximum", "minimum", "div_scalar", "scale",   "add_scalar",
    "pow_scalar", "pow", "add", "sub",     "mul",     "div",        "exp",     "tanh",
    "sigmoid",    "erf", "log", "sqrt",    "relu",    "softmax",    "sum_all", "mean_all"};

void ExpectNeighbours(const Tensor& actual, const std::vector<double>& expected) {
  const std::vector<double> values = actual.To(Device{}).To(DType::kF64).ToVector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::fabs(values[i] - expected[i]), 0x1p-7 * std::fabs(expected[i]))
        << "element " << i;
  }
}

void RunCase(const Json& of) {
  const bool narrow = of.at("dtype") == "bfloat16";
  const std::string name = of.at("op");
  Tensors leaves, inputs;
  for (const Json& input : of.at("inputs")) {
    Tensor leaf = Tensor::FromVector(Numbers(input.at("values")), ShapeOf(input.at("shape")))
                      .To(DType::kF32)
                      .To(CheckedDevice());
    leaves.push_back(leaf.SetRequiresGrad(true));
    // A convolution's weight and bias stay float32.
    const bool casts = narrow && (name != "conv1d" || inputs.empty());
    inputs.push_back(casts ? Cast(leaf, DType::kBF16) : leaf);
  }
  const double limit = narrow ? 0.02 : 5e-6;
  const Tensors outputs = Call(name, inputs, of.at("options"));
  ASSERT_EQ(outputs.size(), of.at("outputs").size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Json& expected = of.at("outputs").at(i);
    EXPECT_EQ(outputs[i].shape(), ShapeOf(expected.at("shape")));
    const bool indices = outputs[i].dtype() == DType::kI64;
    EXPECT_EQ(outputs[i].dtype(), indices ? DType::kI64 : narrow ? DType::kBF16 : DType::kF32);
    ExpectClose(outputs[i], Numbers(expected.at("values")), indices ? 0 : limit);
    if (narrow && kRoundOnce.contains(name))
      ExpectNeighbours(outputs[i], Numbers(expected.at("values")));
  }
  if (!of.contains("cotangent")) return;
  Backward(outputs[0], Tensor::FromVector(Numbers(of.at("cotangent")), outputs[0].shape())
                           .To(outputs[0].dtype())
                           .To(CheckedDevice()));
  for (size_t i = 0; i < leaves.size(); ++i) {
    SCOPED_TRACE("gradient of input " + std::to_string(i));
    ASSERT_TRUE(leaves[i].grad().defined());
    ExpectClose(leaves[i].grad(), Numbers(of.at("gradients").at(i)), limit);
  }
}

TEST(MathOpsGolden, EqualsPyTorchs) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Json golden = ParseJson(ReadFile("tests/golden/math_ops.json"));
  ASSERT_GE(golden.at("cases").size(), 200u);
  std::set<std::string> seen;
  for (const Json& of : golden.at("cases")) {
    SCOPED_TRACE(DumpJson(of).substr(0, 200));
    seen.insert(of.at("op").get<std::string>());
    RunCase(of);
  }
  EXPECT_EQ(seen.size(), Ops().size() + kUnary.size() + kBinary.size());
}

}  // namespace
}  // namespace lathe
