// Ops on shapes and indices against PyTorch's results and gradients (golden/make_tensor_ops.py), on
// the host or on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/ops.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<float>;
// An op of the arguments, the inputs, and the indices and masks on the host.
using Op = std::function<Tensor(const Json& arguments, const Tensors& x, const Tensors& others)>;

Device OpDevice() { return HasCheckedDevice() ? CheckedDevice() : Device{}; }

Shape ShapeOf(const Json& json) {
  const std::vector<int64_t> sizes = json;
  return Shape(sizes.begin(), sizes.end());
}

Tensor TensorOf(const Json& json, DType dtype) {
  const Numbers values = json["values"];
  return Tensor::FromVector(values, ShapeOf(json["shape"])).To(dtype);
}

Numbers NumbersOf(const Tensor& x) { return x.To(Device{}).To(DType::kF32).ToVector<float>(); }

Tensor IndexOf(const Tensors& others) { return others[0].To(DType::kI64).To(OpDevice()); }
Tensor MaskOf(const Tensors& others) { return others[0].To(DType::kBool).To(OpDevice()); }

const std::map<std::string, Op>& Ops() {
  static const std::map<std::string, Op> ops = {
      {"transpose", [](const Json& a, const Tensors& x,
                       const Tensors&) { return Transpose(x[0], a["dims"][0], a["dims"][1]); }},
      {"permute",
       [](const Json& a, const Tensors& x, const Tensors&) { return Permute(x[0], a["dims"]); }},
      {"slice",
       [](const Json& a, const Tensors& x, const Tensors&) {
         return Slice(x[0], a["dim"], a["begin"], a["end"], a["step"]);
       }},
      {"concat",
       [](const Json& a, const Tensors& x, const Tensors&) { return Concat(x, a["dim"]); }},
      {"stack", [](const Json& a, const Tensors& x, const Tensors&) { return Stack(x, a["dim"]); }},
      {"split",
       [](const Json& a, const Tensors& x, const Tensors&) {
         Tensors parts = Split(x[0], a["size"].get<int64_t>(), a["dim"]);
         std::reverse(parts.begin(), parts.end());
         return Concat(parts, a["dim"]);
       }},
      {"expand", [](const Json& a, const Tensors& x,
                    const Tensors&) { return Expand(x[0], ShapeOf(a["shape"])); }},
      {"where", [](const Json&, const Tensors& x,
                   const Tensors& others) { return Where(MaskOf(others), x[0], x[1]); }},
      {"masked_fill",
       [](const Json& a, const Tensors& x, const Tensors& others) {
         return MaskedFill(x[0], MaskOf(others), a["value"]);
       }},
      {"gather", [](const Json& a, const Tensors& x,
                    const Tensors& others) { return Gather(x[0], a["dim"], IndexOf(others)); }},
      {"index_select",
       [](const Json& a, const Tensors& x, const Tensors& others) {
         return IndexSelect(x[0], a["dim"], IndexOf(others));
       }},
      {"scatter_add",
       [](const Json& a, const Tensors& x, const Tensors& others) {
         return ScatterAdd(x[0], a["dim"], IndexOf(others), x[1]);
       }},
      {"one_hot", [](const Json& a, const Tensors&,
                     const Tensors& others) { return OneHot(IndexOf(others), a["num_classes"]); }},
      {"eq", [](const Json&, const Tensors& x, const Tensors&) { return Equal(x[0], x[1]); }},
      {"ne", [](const Json&, const Tensors& x, const Tensors&) { return NotEqual(x[0], x[1]); }},
      {"lt", [](const Json&, const Tensors& x, const Tensors&) { return Less(x[0], x[1]); }},
      {"le", [](const Json&, const Tensors& x, const Tensors&) { return LessEqual(x[0], x[1]); }},
      {"gt", [](const Json&, const Tensors& x, const Tensors&) { return Greater(x[0], x[1]); }},
      {"ge",
       [](const Json&, const Tensors& x, const Tensors&) { return GreaterEqual(x[0], x[1]); }},
  };
  return ops;
}

// Expects the numbers, or for sums those within an error relative to the largest of them.
void ExpectNumbers(const Numbers& actual, const Numbers& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (const float v : expected) largest = std::max(largest, std::fabs(v));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), tolerance * largest)
        << "element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

TEST(GoldenTensorOps, AsPyTorch) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Json golden = ParseJson(ReadFile("tests/golden/tensor_ops.json"));
  std::map<std::string, int> cases;
  for (const Json& made : golden["cases"]) {
    const std::string name = made["op"];
    const bool is_narrow = made["dtype"] == "bfloat16";
    SCOPED_TRACE(name + " " + made["dtype"].get<std::string>() + " case " +
                 std::to_string(cases[name]++) + " " + DumpJson(made["arguments"]));
    Tensors inputs, others;
    for (const Json& x : made["inputs"]) {
      inputs.push_back(TensorOf(x, is_narrow ? DType::kBF16 : DType::kF32).To(OpDevice()));
      inputs.back().SetRequiresGrad(true);
    }
    for (const Json& x : made["others"]) others.push_back(TensorOf(x, DType::kF32));
    // Sums of bfloat16 differ: PyTorch's are rounded at each addition, ours once.
    const bool sums = name == "scatter_add" || name == "gather" || name == "index_select" ||
                      name == "expand" || name == "where";
    const double tolerance = !sums ? 0 : is_narrow ? 0.02 : 1e-6;
    ASSERT_TRUE(Ops().contains(name));
    const Tensor y = Ops().at(name)(made["arguments"], inputs, others);
    EXPECT_EQ(y.shape(), ShapeOf(made["output"]["shape"]));
    ExpectNumbers(NumbersOf(y), made["output"]["values"], name == "scatter_add" ? tolerance : 0);
    EXPECT_EQ(y.requires_grad(), made.contains("cotangent"));
    if (!y.requires_grad()) continue;
    const Numbers cotangent = made["cotangent"];
    Backward(y, Tensor::FromVector(cotangent, y.shape()).To(y.dtype()).To(OpDevice()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      SCOPED_TRACE("gradient of input " + std::to_string(i));
      ExpectNumbers(NumbersOf(inputs[i].grad()), made["gradients"][i], tolerance);
    }
  }
  EXPECT_EQ(cases.size(), Ops().size());
  for (const auto& [name, count] : cases) EXPECT_GE(count, 3) << name;
}

}  // namespace
}  // namespace lathe
