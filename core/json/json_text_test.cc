#include "lathe/core/json/json_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace lathe {
namespace {

using Json = nlohmann::json;

TEST(JsonText, ReadsWhatItWrites) {
  const Json value = {{"a", {1, -2.5, true, nullptr}}, {"b", "ü\n"}};
  EXPECT_EQ(DumpJson(value), R"({"a":[1,-2.5,true,null],"b":"ü\n"})");
  EXPECT_EQ(ParseJson(DumpJson(value)), value);
  EXPECT_EQ(ParseJsonOrDiscard(DumpJson(value, 2)), value);
}

TEST(JsonText, Layout) {
  EXPECT_EQ(DumpJson(Json{{"b", 1}, {"a", "ü"}}, 2, /*ensure_ascii=*/true),
            "{\n  \"a\": \"\\u00fc\",\n  \"b\": 1\n}");
  EXPECT_EQ(DumpJson(nlohmann::ordered_json{{"b", 1}, {"a", 2}}), R"({"b":1,"a":2})");
}

TEST(JsonText, ReplacesWhatJsonCannotHold) {
  EXPECT_EQ(DumpJson(Json("a\xFFz")), "\"a\uFFFDz\"");
  EXPECT_EQ(DumpJson(nlohmann::ordered_json("a\xFFz")), "\"a\uFFFDz\"");
  EXPECT_EQ(DumpJson(Json(std::numeric_limits<double>::infinity())), "null");
}

TEST(JsonText, RefusesOtherTexts) {
  for (const char* text : {"", "{", "[1,]", "nan", "1 2", "\"\xFF\""}) {
    EXPECT_THROW(ParseJson(text), Json::parse_error) << text;
    EXPECT_TRUE(ParseJsonOrDiscard(text).is_discarded()) << text;
  }
  EXPECT_THROW(ParseJson("1e999"), Json::out_of_range);
  EXPECT_TRUE(ParseJsonOrDiscard("1e999").is_discarded());
}

}  // namespace
}  // namespace lathe
