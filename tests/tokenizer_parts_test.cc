// Checks the parts of a tokenizer.json one by one: what they do must equal what the package
// `tokenizers` does. tests/golden/make_tokenizer_parts.py made the numbers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/load_tokenizer.h"
#include "lathe/data/tokenizers/model.h"
#include "lathe/data/tokenizers/normalizer.h"
#include "lathe/data/tokenizers/pre_tokenizer.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Calls `check(part, one_case)` for all cases of all parts of a kind.
template <typename Check>
void ForCases(const std::string& kind, Check check) {
  int num_cases = 0;
  const Json file = ParseJson(ReadFile("tests/golden/tokenizer_parts.json"));
  for (const Json& entry : file.at(kind)) {
    SCOPED_TRACE(DumpJson(entry.at("json")).substr(0, 300));
    const auto part = check(entry.at("json"));
    for (const Json& one_case : entry.at("cases")) {
      part(one_case);
      ++num_cases;
    }
  }
  EXPECT_GT(num_cases, 50);
}

TEST(TokenizerPartsTest, Normalizers) {
  ForCases("normalizers", [](const Json& json) {
    return [normalizer = NormalizerFromJson(json)](const Json& one_case) {
      EXPECT_EQ(normalizer(one_case[0]), one_case[1].get<std::string>()) << DumpJson(one_case);
    };
  });
}

TEST(TokenizerPartsTest, PreTokenizers) {
  ForCases("pre_tokenizers", [](const Json& json) {
    return [pre_tokenizer = PreTokenizerFromJson(json)](const Json& one_case) {
      std::vector<std::string> words;
      pre_tokenizer(one_case[0].get<std::string>(), true,
                    [&](std::string_view word) { words.emplace_back(word); });
      auto expected = one_case[1].get<std::vector<std::string>>();
      std::erase(expected, "");
      EXPECT_EQ(words, expected) << DumpJson(one_case);
    };
  });
}

TEST(TokenizerPartsTest, Models) {
  ForCases("models", [](const Json& json) {
    return [model = SubwordModelFromJson(json)](const Json& one_case) {
      // Each word comes from the model the first time, and from its cache the second time.
      for (int repeat = 0; repeat < 2; ++repeat) {
        std::vector<int32_t> ids;
        if (one_case[1].is_null()) {  // `tokenizers` refuses the word
          EXPECT_THROW(model->Encode(one_case[0].get<std::string>(), &ids), Error)
              << DumpJson(one_case);
          continue;
        }
        model->Encode(one_case[0].get<std::string>(), &ids);
        EXPECT_EQ(ids, one_case[1].get<std::vector<int32_t>>()) << DumpJson(one_case);
      }
    };
  });
}

TEST(TokenizerPartsTest, WholeTokenizers) {
  ForCases("tokenizers", [](const Json& json) {
    const std::string config = R"({"model_input_names": ["input_ids", "token_type_ids"]})";
    std::shared_ptr<Tokenizer> tokenizer = TokenizerFromContents(
        "dir", {{"tokenizer.json", DumpJson(json)}, {"tokenizer_config.json", config}}, "");
    return [tokenizer](const Json& one_case) {
      std::optional<std::string> pair;
      if (!one_case[1].is_null()) {
        pair = one_case[1].get<std::string>();
      }
      const Encoding encoding = tokenizer->Encode(one_case[0].get<std::string>(), pair);
      EXPECT_EQ(encoding.input_ids, one_case[2].get<std::vector<int32_t>>()) << DumpJson(one_case);
      EXPECT_EQ(encoding.token_type_ids, one_case[3].get<std::vector<int32_t>>())
          << DumpJson(one_case);
    };
  });
}

}  // namespace
}  // namespace lathe
