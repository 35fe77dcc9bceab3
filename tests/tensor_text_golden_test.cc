// Compares printed tensors with NumPy's text. tests/golden/make_printing.py writes the cases.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/create/create.h"
#include "lathe/core/ops/print/tensor_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

DType DTypeNamed(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64, DType::kI64, DType::kI32,
                            DType::kU8, DType::kBool}) {
    if (name == ToString(dtype)) return dtype;
  }
  ADD_FAILURE() << "no dtype " << name;
  return DType::kF32;
}

double Number(const Json& number) {
  if (number.is_boolean()) return number.get<bool>() ? 1 : 0;
  if (number.is_number()) return number.get<double>();
  const std::string text = number.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return text == "inf" ? std::numeric_limits<double>::infinity()
                       : -std::numeric_limits<double>::infinity();
}

Tensor TensorOf(const Json& of) {
  Shape shape;
  for (const Json& size : of.at("shape")) shape.push_back(size.get<int64_t>());
  const DType dtype = DTypeNamed(of.at("dtype"));
  if (of.contains("ramp")) {
    const double first = of.at("ramp");
    const auto n = static_cast<double>(NumElements(shape));
    return ArangeOf(first, first + n, 1, dtype).Reshape(shape);
  }
  if (dtype == DType::kI64) {  // double does not hold all of them
    return Tensor::FromVector(of.at("values").get<std::vector<int64_t>>(), shape);
  }
  std::vector<double> values;
  for (const Json& number : of.at("values")) values.push_back(Number(number));
  return Tensor::FromVector(values, shape).To(dtype);
}

TEST(TensorTextGolden, EqualsNumPys) {
  const Json golden = ParseJson(ReadFile("tests/golden/printing.json"));
  ASSERT_GE(golden.at("cases").size(), 250u);
  for (const Json& of : golden.at("cases")) {
    EXPECT_EQ(ToString(TensorOf(of)), of.at("text").get<std::string>())
        << DumpJson(of).substr(0, 200);
  }
}

}  // namespace
}  // namespace lathe
