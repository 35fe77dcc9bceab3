// Tests `lathe tokenize`.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

class CliTokenizeTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    Write("model/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nfilm\n##s\ngood\n");
  }

  RunResult Tokenize(const std::vector<std::string>& more, const std::string& input = "") const {
    std::vector<std::string> args = {"tokenize", Path("model")};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("lathe", args, {.input = input});
  }
};

TEST_F(CliTokenizeTest, PrintsOneObjectForEachText) {
  const RunResult run = Tokenize({"a good film", "films"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out,
            "{\"input_ids\":[2,5,8,6,3],\"tokens\":[\"[CLS]\",\"a\",\"good\",\"film\",\"[SEP]\"],"
            "\"token_type_ids\":[0,0,0,0,0]}\n"
            "{\"input_ids\":[2,6,7,3],\"tokens\":[\"[CLS]\",\"film\",\"##s\",\"[SEP]\"],"
            "\"token_type_ids\":[0,0,0,0]}\n");
  EXPECT_EQ(Tokenize({}, "a good film\r\nfilms\n").out, run.out);
}

TEST_F(CliTokenizeTest, PairsAndTruncation) {
  const Json pair = ParseJson(Tokenize({"--pairs"}, "a\tgood film\n").out);
  EXPECT_EQ(pair["input_ids"], Json({2, 5, 3, 8, 6, 3}));
  EXPECT_EQ(pair["token_type_ids"], Json({0, 0, 0, 1, 1, 1}));
  const Json cut = ParseJson(Tokenize({"a good film", "--max_length", "4"}).out);
  EXPECT_EQ(cut["input_ids"], Json({2, 5, 8, 3}));
}

TEST_F(CliTokenizeTest, Errors) {
  const RunResult no_tab = Tokenize({"--pairs"}, "a\tb\nno tab\n");
  EXPECT_EQ(no_tab.exit_code, 1);
  EXPECT_NE(no_tab.err.find("standard input:2: no tab between two texts"), std::string::npos);
  EXPECT_EQ(ParseJson(no_tab.out)["input_ids"].size(), 5u);  // the line before it
  EXPECT_NE(Tokenize({"--max_length", "1"}, "a\n")
                .err.find("standard input:1: max_length must be at least 2"),
            std::string::npos);
  const RunResult no_dir = RunProgram("lathe", {"tokenize"});
  EXPECT_EQ(no_dir.exit_code, 2);
  EXPECT_NE(no_dir.err.find("DIR is missing"), std::string::npos);
  EXPECT_EQ(Tokenize({"\xFF"}).exit_code, 1);
  EXPECT_EQ(Tokenize({"\xFF", "--invalid_utf8", "replace"}).exit_code, 0);
  const RunResult help = Tokenize({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("--max_length"), std::string::npos);
}

}  // namespace
}  // namespace lathe
