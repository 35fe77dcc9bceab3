#include "lathe/train/card/yaml_text.h"

#include <gtest/gtest.h>

#include <string>

namespace lathe {
namespace {

TEST(YamlText, LeavesPlainTextsAlone) {
  for (const char* text : {"bert", "google-bert/bert-base-uncased", "dev.csv", "my model", "a.b_c"})
    EXPECT_EQ(YamlText(text), text);
}

// Without quotes, a reader of YAML takes each of these for a number, a boolean, nothing, a date, a
// list, a comment and so on.
TEST(YamlText, QuotesWhatReadersTakeForSomethingElse) {
  for (const char* text :
       {"",    "123",  "1e5",        "0x10", "-",    "yes", "No",   "TRUE", "null", "Off",
        "y",   "~",    "2024-01-01", "a: b", "a #b", "#a",  "- a",  "[a]",  "{a}",  "*a",
        "&a",  "!a",   "%a",         "@a",   "`a`",  "'a'", "a ",   " a",   "a|b",  "> a",
        "? a", ".inf", "..",         "/a/b", "=",    "a,b", "größe"})
    EXPECT_EQ(YamlText(text), '"' + std::string(text) + '"') << text;
}

TEST(YamlText, EscapesWhatQuotesDoNotHold) {
  EXPECT_EQ(YamlText("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(YamlText("a\nb\tc\r"), R"("a\nb\tc\r")");
  EXPECT_EQ(YamlText(std::string("a\0b", 3)), R"("a\u0000b")");
  EXPECT_EQ(YamlText("\x1b[0m"), R"("\u001b[0m")");
  EXPECT_EQ(YamlText("\x7f"), R"("\u007F")");
  EXPECT_EQ(YamlText("a\xC2\x85z"), R"("a\u0085z")");                    // a next line
  EXPECT_EQ(YamlText("\xE2\x80\xA8\xE2\x80\xA9"), R"("\u2028\u2029")");  // ends of lines
  EXPECT_EQ(YamlText("\xEF\xBB\xBF\xEF\xBF\xBE"), R"("\uFEFF\uFFFE")");
  EXPECT_EQ(YamlText("\xF0\x9F\x98\x80"), "\"\xF0\x9F\x98\x80\"");
  EXPECT_EQ(YamlText("caf\xE9"), "\"caf\xEF\xBF\xBD\"");
}

TEST(YamlNumber, ReadsBackAsANumber) {
  EXPECT_EQ(YamlNumber(0.875), "0.875");
  EXPECT_EQ(YamlNumber(1), "1.0");
  EXPECT_EQ(YamlNumber(1e-5), "1.0e-05");
  EXPECT_EQ(YamlNumber(1.5e30), "1.5e+30");
  EXPECT_EQ(YamlNumber(-2e-7), "-2.0e-07");
}

}  // namespace
}  // namespace lathe
