// What a tokenizer.json may hold, and the errors about what it may not.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/load_tokenizer.h"

namespace lathe {
namespace {

using namespace std::string_literals;
using Files = std::map<std::string, std::string>;

std::string ErrorOf(Files files) {
  try {
    TokenizerFromContents("dir", std::move(files), "");
  } catch (const Error& error) {
    EXPECT_NE(error.hint(), "") << error.message();
    return error.message();
  }
  return "no error";
}

// `tokenizers` takes a model without unk_id, and refuses texts that need one.
TEST(TokenizerJsonTest, UnigramWithoutUnknownToken) {
  for (const char* unk_id : {"", R"("unk_id": null, )"}) {
    const auto tokenizer = TokenizerFromContents(
        "dir",
        {{"tokenizer.json", R"({"model": {"type": "Unigram", )"s + unk_id +
                                R"("vocab": [["a", -1], ["b", -2], ["ab", -2.5], ["é", -3]]}})"}},
        "");
    EXPECT_EQ(tokenizer->Encode("abéb").input_ids, (std::vector<int32_t>{2, 3, 1}));
    try {
      tokenizer->Encode("a", "b爱");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                "dir/tokenizer.json: the Unigram model has no piece for '爱' and no unk_id");
      EXPECT_NE(error.hint(), "");
    }
  }
}

// Old files name no type. `tokenizers` tells the model by its keys.
TEST(TokenizerJsonTest, ModelsWithoutTypeAreToldByTheirKeys) {
  const auto ids = [](const std::string& model) {
    return TokenizerFromContents("dir", {{"tokenizer.json", R"({"model": )" + model + "}"}}, "")
        ->Encode("ab")
        .input_ids;
  };
  EXPECT_EQ(ids(R"({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]})"),
            (std::vector<int32_t>{2}));
  EXPECT_EQ(ids(R"({"unk_id": 0, "vocab": [["?", 0], ["a", -1], ["b", -2]]})"),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ids(R"({"unk_token": "?", "max_input_chars_per_word": 9,
                    "vocab": {"?": 0, "a": 1, "##b": 2}})"),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ids(R"({"unk_token": "?", "vocab": {"?": 0, "a": 1, "ab": 2}})"),
            (std::vector<int32_t>{2}));
  EXPECT_EQ(ErrorOf({{"tokenizer.json", R"({"model": {"unk_token": "?"}})"}}),
            "dir/tokenizer.json: model: has neither \"type\" nor \"vocab\"");
}

TEST(TokenizerJsonTest, WordLevelRefusesAWordWithoutUnknownToken) {
  const auto tokenizer = TokenizerFromContents(
      "dir",
      {{"tokenizer.json", R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"a": 3}},
                              "pre_tokenizer": {"type": "WhitespaceSplit"}})"}},
      "");
  EXPECT_EQ(tokenizer->Encode("a a").input_ids, (std::vector<int32_t>{3, 3}));
  std::string long_word, start;
  for (int i = 0; i < 50; ++i) long_word += "爱";
  for (int i = 0; i < 40; ++i) start += "爱";
  for (const auto& [word, shown] : {std::pair("b"s, "b"s), std::pair(long_word, start + "...")}) {
    try {
      tokenizer->Encode("a " + word);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "dir/tokenizer.json: the WordLevel model has neither '" + shown +
                                     "' nor its unk_token '?' in the vocabulary");
      EXPECT_NE(error.hint(), "");
    }
  }
}

// A token that strips white space may meet itself in what it took. The ids are those of
// `tokenizers`.
TEST(TokenizerJsonTest, WhiteSpaceTokensWithinWhatATokenTook) {
  const auto ids = [](const std::string& strips, const std::string& text) {
    const auto tokenizer = TokenizerFromContents(
        "dir",
        {{"tokenizer.json",
          R"({"pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordPiece",
              "unk_token": "?", "vocab": {"?": 0, "a": 1, "'": 2, "##'": 3, "##a": 4}},
              "added_tokens": [{"id": 5, "content": "\n", "normalized": false, )" +
              strips + "}]}"}},
        "");
    return tokenizer->Encode(text).input_ids;
  };
  const std::string both = R"("single_word": true, "lstrip": true, "rstrip": true)";
  EXPECT_EQ(ids(both, "\n\r\n''a"), (std::vector<int32_t>{5, 2, 3, 4}));
  EXPECT_EQ(ids(both, "a \n\n a"), (std::vector<int32_t>{1, 5, 1}));
  EXPECT_EQ(ids(both, "  \n  \n"), (std::vector<int32_t>{5}));
  const std::string right = R"("single_word": false, "lstrip": false, "rstrip": true)";
  EXPECT_EQ(ids(right, "a \n\n a"), (std::vector<int32_t>{1, 5, 5, 1}));
  const std::string left = R"("single_word": false, "lstrip": true, "rstrip": false)";
  EXPECT_EQ(ids(left, "\n\r\n''a"), (std::vector<int32_t>{5, 5, 2, 3, 4}));
}

// The functions that refuse a part know neither the file nor, in part, whose value it is.
TEST(TokenizerJsonTest, EachErrorNamesTheFileAndThePart) {
  const auto error = [](const std::string& part, const std::string& value) {
    const std::string model =
        part == "model" ? "" : R"(, "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}})";
    return ErrorOf({{"tokenizer.json", "{\"" + part + "\": " + value + model + "}"}});
  };
  EXPECT_EQ(error("model", R"({"type": "Unigram", "unk_id": 1, "vocab": [["a", 0]]})"),
            "dir/tokenizer.json: model: unk_id is 1, but the vocabulary has 1 pieces");
  EXPECT_EQ(error("model", R"({"type": "WordPiece", "vocab": {"a": 0}})"),
            "dir/tokenizer.json: model: the vocabulary has no unknown token '[UNK]'");
  EXPECT_TRUE(error("model", R"({"type": "WordPiece", "vocab": {"[UNK]": -1}})")
                  .starts_with("dir/tokenizer.json: model: the id of token '[UNK]' must be "));
  EXPECT_EQ(error("normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": ""})"),
            "dir/tokenizer.json: normalizer: Replace has an empty pattern");
  EXPECT_EQ(error("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Other"}]})"),
            "dir/tokenizer.json: normalizer 'Other' is not supported");
  EXPECT_EQ(error("pre_tokenizer",
                  R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})"),
            "dir/tokenizer.json: pre_tokenizer: '(' is not a regular expression: end pattern with "
            "unmatched parenthesis");
  EXPECT_EQ(
      error("pre_tokenizer", R"({"type": "CharDelimiterSplit", "delimiter": "--"})"),
      "dir/tokenizer.json: pre_tokenizer: CharDelimiterSplit has the delimiter '--', which is "
      "not one character");
  for (const char* length : {"0", "-1", "2.5", "null", "\"5\""}) {
    EXPECT_EQ(error("pre_tokenizer", R"({"type": "FixedLength", "length": )"s + length + "}"),
              "dir/tokenizer.json: pre_tokenizer: FixedLength has the length "s + length +
                  ", which is not a positive whole number");
  }
  EXPECT_TRUE(error("model", R"({"type": "WordLevel", "vocab": {"a": 0}})")
                  .starts_with("dir/tokenizer.json: model: "));
  EXPECT_TRUE(error("added_tokens", R"([{"content": "a", "id": "b"}])")
                  .starts_with("dir/tokenizer.json: added_tokens: "));
}

// The expected ids are those of Transformers 5.24, for BertTokenizer and PreTrainedTokenizerFast.
TEST(TokenizerJsonTest, TextsAreCutAtTheSideThatTheFilesName) {
  std::string vocab = R"("[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3)", text, pair;
  for (int id = 15; id < 35; ++id)
    vocab += ", \"t" + std::to_string(id) + "\": " + std::to_string(id);
  for (int id = 15; id < 25; ++id) text += " t" + std::to_string(id);
  for (int id = 30; id < 35; ++id) pair += " t" + std::to_string(id);
  const auto files = [&](const std::string& json, const std::string& config) {
    return Files{{"tokenizer.json", R"({"model": {"type": "WordPiece", "unk_token": "[UNK]",
            "max_input_chars_per_word": 100, "vocab": {)" +
                                        vocab + R"(}},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})" +
                                        json + "}"},
                 {"tokenizer_config.json", "{" + config + "}"}};
  };
  using Ids = std::vector<int32_t>;
  const std::string left = R"("truncation_side": "left")", right = R"("truncation_side": "right")";
  const std::string saved_left = R"(, "truncation": {"direction": "Left", "max_length": 512})",
                    saved_right = R"(, "truncation": {"direction": "Right", "max_length": 512})",
                    none = R"(, "truncation": null)";
  for (const std::string& json : {""s, none, saved_left, saved_right}) {
    for (const std::string& config : {""s, left, right}) {
      const auto tokenizer = TokenizerFromContents("dir", files(json, config), "");
      const bool cuts_left = config.empty() ? json == saved_left : config == left;
      const Encoding single = tokenizer->Encode(text, std::nullopt, 8);
      EXPECT_EQ(single.input_ids, cuts_left ? (Ids{2, 19, 20, 21, 22, 23, 24, 3})
                                            : (Ids{2, 15, 16, 17, 18, 19, 20, 3}))
          << json << config;
      EXPECT_TRUE(single.truncated);
      EXPECT_EQ(tokenizer->Encode(text, pair, 9).input_ids,
                cuts_left ? (Ids{2, 22, 23, 24, 3, 32, 33, 34, 3})
                          : (Ids{2, 15, 16, 17, 3, 30, 31, 32, 3}))
          << json << config;
      EXPECT_EQ(tokenizer->Encode("t15", std::nullopt, 8).input_ids, (Ids{2, 15, 3}));
    }
  }
  EXPECT_EQ(
      ErrorOf(files("", R"("truncation_side": "up")")),
      "dir/tokenizer_config.json: truncation_side must be \"left\" or \"right\" but is \"up\"");
  EXPECT_TRUE(ErrorOf(files(R"(, "truncation": {"direction": 1})", ""))
                  .starts_with("dir/tokenizer.json: truncation: "));
}

TEST(TokenizerJsonTest, ErrorsNameTheFileThatIsWrong) {
  EXPECT_EQ(ErrorOf({{"tokenizer.json", "[1]"}}), "dir/tokenizer.json: must hold a JSON object");
  EXPECT_TRUE(ErrorOf({{"vocab.json", R"({"a": "b"})"},
                       {"merges.txt", ""},
                       {"tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})"}})
                  .starts_with("dir/vocab.json: "));
  EXPECT_TRUE(ErrorOf({{"tokenizer.json", R"({"model": {"type": "WordPiece", "vocab":
                                              {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}}})"},
                       {"tokenizer_config.json", R"({"pad_token": 7})"}})
                  .starts_with("dir/tokenizer_config.json: "));
}

// A search that takes too many steps fails with the text that causes it.
TEST(TokenizerJsonTest, ASearchThatTakesTooLongNamesTheFile) {
  const auto tokenizer = TokenizerFromContents(
      "dir", {{"tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}},
          "normalizer": {"type": "Replace", "content": "", "pattern": {"Regex": "(a|aa)+$"}}})"}},
      "");
  EXPECT_EQ(tokenizer->Encode("aa").input_ids.size(), 0u);
  try {
    tokenizer->Encode(std::string(40, 'a') + "b");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_TRUE(error.message().starts_with(
        "dir/tokenizer.json: the regular expression '(a|aa)+$' can't be searched for in a text: "))
        << error.message();
  }
}

}  // namespace
}  // namespace lathe
