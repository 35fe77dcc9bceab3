#include "lathe/core/checkpoint/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NonFiniteTest, FindsThemAtAnyDepth) {
  const json values = {{"a", kInfinity},
                       {"b/c~", {1, -kInfinity, {{"", std::nan("")}}}},
                       {"finite", {0.5, "Infinity", nullptr}}};
  const json places = NonFiniteNumbers(values);
  EXPECT_EQ(places, json({{"/a", "Infinity"}, {"/b~1c~0/1", "-Infinity"}, {"/b~1c~0/2/", "NaN"}}));
  json read = ParseJson(DumpJson(values));
  RestoreNonFinite(ParseJson(DumpJson(places)), read, "file");
  EXPECT_EQ(read.at("a"), kInfinity);
  EXPECT_EQ(read.at("b/c~").at(1), -kInfinity);
  EXPECT_TRUE(std::isnan(read.at("b/c~").at(2).at("").get<double>()));
  EXPECT_EQ(read.at("finite"), values.at("finite"));
  EXPECT_TRUE(NonFiniteNumbers(read.at("finite")).empty());
}

TEST(NonFiniteTest, DamagedPlacesAreErrors) {
  for (const char* places :
       {R"([])", R"({"/none": "NaN"})", R"({"a": "NaN"})", R"({"/a": "nan"})", R"({"/a": 3})",
        R"({"/b": "NaN"})", R"({"/list/01": "NaN"})", R"({"/list/-": "NaN"})",
        R"({"/list/7": "NaN"})", R"({"/~2": "NaN"})", R"({"/a/b": "NaN"})", R"({"": "NaN"})"}) {
    json values = {{"a", nullptr}, {"b", 1}, {"list", {nullptr}}};
    const json before = values;
    try {
      RestoreNonFinite(ParseJson(places), values, "file");
      ADD_FAILURE() << places;
    } catch (const Error& e) {
      EXPECT_TRUE(e.message().starts_with("file: ")) << e.message();
    }
    EXPECT_EQ(values, before) << places;
  }
}

}  // namespace
}  // namespace lathe
