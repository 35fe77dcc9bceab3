// Checks every line of every golden tokenizer case: ids and types must equal those of Transformers'
// AutoTokenizer. Cases are in tests/golden/tokenizers, and in $LATHE_GOLDEN_DIR/tokenizers (by
// default ../shared/golden/tokenizers) if that exists.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Returns true if ids and types are right. A line has no types if the tokenizer makes none by
// default.
bool CheckLine(const Tokenizer& tokenizer, const Json& line) {
  const std::string text = line["text"];
  std::optional<std::string> pair;
  if (!line["text_pair"].is_null()) {
    pair = line["text_pair"].get<std::string>();
  }
  const int64_t max_length = line["max_length"].is_null() ? 0 : line["max_length"].get<int64_t>();
  const Encoding encoding = tokenizer.Encode(text, pair, max_length);
  const auto ids = line["input_ids"].get<std::vector<int32_t>>();
  EXPECT_EQ(encoding.input_ids, ids) << DumpJson(line["tokens"]);
  const Json& golden_types = line["token_type_ids"];
  const auto types = golden_types.is_null() ? std::vector<int32_t>(ids.size())
                                            : golden_types.get<std::vector<int32_t>>();
  EXPECT_EQ(encoding.token_type_ids.size(), ids.size());
  EXPECT_EQ(tokenizer.makes_token_type_ids(), !golden_types.is_null());
  EXPECT_TRUE(golden_types.is_null() || encoding.token_type_ids == types);
  return encoding.input_ids == ids && (golden_types.is_null() || encoding.token_type_ids == types);
}

std::map<std::string, std::string> ReadFolder(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

// Returns the type in config.json. Only folders without the tokenizer's own configuration need it.
std::string ModelType(const fs::path& dir) {
  const fs::path file = dir / "config.json";
  return fs::exists(file) ? ParseJson(ReadFile(file)).at("model_type").get<std::string>() : "";
}

// Returns true if the tokenizer could be loaded.
bool RunCase(const fs::path& dir) {
  SCOPED_TRACE(dir.string());
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = LoadTokenizer(dir, ModelType(dir));
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    return false;
  }
  std::ifstream in(dir / "golden.jsonl", std::ios::binary);
  int64_t num_lines = 0, num_wrong = 0;
  for (std::string text; std::getline(in, text); ++num_lines) {
    SCOPED_TRACE(text.substr(0, 300));
    num_wrong += !CheckLine(*tokenizer, ParseJson(text));
  }
  EXPECT_GT(num_lines, 0);
  std::cout << dir.filename() << ": " << num_lines << " lines"
            << ", " << num_wrong << " wrong\n";

  // Saved again, the folder holds the same bytes. A configuration is added if there was none.
  const fs::path saved = fs::path(testing::TempDir()) / ("tokenizer_" + dir.filename().string());
  fs::remove_all(saved);  // left by another run
  fs::create_directories(saved);
  tokenizer->SavePretrained(saved);
  const auto original = ReadFolder(dir);
  for (const auto& [name, contents] : ReadFolder(saved)) {
    if (name == "tokenizer_config.json" && !original.contains(name)) continue;
    EXPECT_TRUE(original.contains(name) && original.at(name) == contents) << name;
  }
  return true;
}

int RunAll(const fs::path& root) {
  int num_run = 0;
  std::set<fs::path> cases;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (fs::exists(entry.path() / "golden.jsonl")) {
      cases.insert(entry.path());
    }
  }
  for (const fs::path& dir : cases) {
    num_run += RunCase(dir);
  }
  return num_run;
}

TEST(TokenizerGoldenTest, OwnCases) { EXPECT_GE(RunAll("tests/golden/tokenizers"), 12); }

TEST(TokenizerGoldenTest, SharedCases) {
  const char* env = std::getenv("LATHE_GOLDEN_DIR");
  const fs::path root = fs::path(env != nullptr ? env : "../shared/golden") / "tokenizers";
  if (!fs::exists(root)) {
    ASSERT_EQ(env, nullptr) << "LATHE_GOLDEN_DIR is set but has no folder tokenizers";
    GTEST_SKIP() << "no golden data at " << root;
  }
  constexpr int kFewest = 17;  // those that all runs compare
  EXPECT_GE(RunAll(root), kFewest) << root;
}

}  // namespace
}  // namespace lathe
