#include "lathe/core/text/written_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

std::string ErrorOf(const std::string& text) {
  try {
    ParseWrittenJson(text, "f", "try again");
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "no error";
}

TEST(WrittenJsonTest, ReadsValues) {
  const std::string text = R"({"a": {"x": 1}, "b": [{"x": 2}, {"x": 3}], "x": "a", "c": null})";
  EXPECT_EQ(ParseWrittenJson(text, "f", ""), ParseJson(text));
  EXPECT_EQ(ParseWrittenJson("3", "f", ""), 3);
}

TEST(WrittenJsonTest, AKeyMayOccurOnceInAnObject) {
  EXPECT_EQ(ErrorOf(R"({"a": 1, "b": 2, "a": 1})"), "f: \"a\" appears twice|leave one of them out");
  EXPECT_EQ(ErrorOf(R"({"a": 1, "\u0061": 1})"), "f: \"a\" appears twice|leave one of them out");
  EXPECT_EQ(ErrorOf(R"({"w": {"a": {"c": 1}, "b": 2, "a": 3}})"),
            "f: \"w\": \"a\" appears twice|leave one of them out");
  EXPECT_EQ(ErrorOf(R"([{"a": 1, "a": 1}])"), "f: \"a\" appears twice|leave one of them out");
}

TEST(WrittenJsonTest, NamesThePlaceOfAMistake) {
  EXPECT_EQ(ErrorOf("{\n\"a\": 1,\n  \"b\": }"), "f:3:8: not valid JSON behind \"b\"|try again");
  EXPECT_EQ(ErrorOf("{a: 1}"), "f:1:2: not valid JSON|try again");
  EXPECT_EQ(ErrorOf(""), "f:1:1: not valid JSON|try again");
  EXPECT_EQ(ErrorOf(R"({"w": {"a": 1 "b": 2}})"), "f:1:17: not valid JSON behind \"w\"|try again");
  const std::string overflow = ErrorOf(R"({"a": 1e999})");
  EXPECT_TRUE(overflow.starts_with("f: \"a\": number overflow")) << overflow;
}

}  // namespace
}  // namespace lathe
