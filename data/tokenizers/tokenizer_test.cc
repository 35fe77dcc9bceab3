#include "lathe/data/tokenizers/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/load_tokenizer.h"
#include "lathe/data/tokenizers/models/unigram.h"
#include "lathe/data/tokenizers/normalizer.h"
#include "lathe/data/tokenizers/tokenizer_family.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using namespace std::string_literals;

constexpr const char* kToyVocab =
    "[PAD] [UNK] [CLS] [SEP] [MASK] un ##aff ##able hello world cafe café ##s ! don ' t 我 爱 i "
    "##\u0307 straße "
    "strasse οδος οδοσ naive a b ##b ##c - $ 1 2 . ##5 hi İ ΟΔΟΣ Hello Café ";

std::unique_ptr<Tokenizer> Toy(bool lower) {
  std::string vocab = kToyVocab;
  for (char& c : vocab) {
    c = c == ' ' ? '\n' : c;
  }
  const std::string config = "{\"do_lower_case\": "s + (lower ? "true" : "false") + "}";
  return TokenizerFromContents("toy", {{"vocab.txt", vocab}, {"tokenizer_config.json", config}},
                               "bert");
}

std::string Tokens(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text).input_ids;
  std::string joined;
  for (size_t i = 1; i + 1 < ids.size(); ++i) {
    joined += (i > 1 ? " " : "") + tokenizer.IdToToken(ids[i]);
  }
  return joined;
}

TEST(TokenizerTest, ToyVocabularyUncased) {
  const auto toy = Toy(true);
  const std::pair<std::string, std::string> cases[] = {
      {"unaffable", "un ##aff ##able"},
      {"Hello, world!", "hello [UNK] world !"},
      {"Café cafés", "cafe cafe ##s"},
      {"我爱world", "我 爱 world"},
      {"don't", "don ' t"},
      {"$1.25", "$ 1 . 2 ##5"},
      {"ΟΔΟΣ", "οδοσ"},
      {"İ", "i"},
      {"straße", "straße"},
      {"naïve—hi", "naive [UNK] hi"},
      {"a\0b\uFFFDc"s, "a ##b ##c"},
      {"a\u00A0b", "a b"},
      {"a\u2028b", "a b"},
      {"a\u200Bb", "a ##b"},
      {"a\u00ADb", "a ##b"},
      {"a\tb\nc", "a b [UNK]"},
      {"\U0002B825a", "[UNK]"},
      {std::string(101, 'b'), "[UNK]"},
      {"a[MASK]b", "a [MASK] b"},
      {"hello[SEP]world", "hello [SEP] world"},
  };
  for (const auto& [text, tokens] : cases) {
    EXPECT_EQ(Tokens(*toy, text), tokens) << text;
  }
  const Encoding pair = toy->Encode("hello world", "hi !");
  EXPECT_EQ(pair.token_type_ids, (std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1}));
}

TEST(TokenizerTest, ToyVocabularyCased) {
  const auto toy = Toy(false);
  EXPECT_EQ(Tokens(*toy, "Hello, world!"), "Hello [UNK] world !");
  EXPECT_EQ(Tokens(*toy, "Café cafés"), "Café café ##s");
  EXPECT_EQ(Tokens(*toy, "İ ΟΔΟΣ"), "İ ΟΔΟΣ");
  EXPECT_EQ(Tokens(*toy, "naïve—hi"), "[UNK] [UNK] hi");
}

TEST(TokenizerTest, LongestFirst) {
  const int64_t cases[][5] = {{3, 3, 5, 2, 3}, {3, 5, 5, 2, 3}, {5, 3, 5, 3, 2}, {8, 2, 6, 4, 2},
                              {2, 8, 6, 2, 4}, {6, 6, 7, 3, 4}, {7, 1, 4, 3, 1}};
  for (const auto& c : cases) {
    EXPECT_EQ(LongestFirst(c[0], c[1], c[2]), std::pair(c[3], c[4])) << c[0] << ' ' << c[1];
  }
}

TEST(TokenizerTest, SaysWhetherItCutTokensOff) {
  const auto toy = Toy(true);
  EXPECT_FALSE(toy->Encode("hello world").truncated);
  EXPECT_FALSE(toy->Encode("hello world", std::nullopt, 4).truncated);
  EXPECT_TRUE(toy->Encode("hello world", std::nullopt, 3).truncated);
  EXPECT_FALSE(toy->Encode("hello world", "hi !", 7).truncated);
  EXPECT_TRUE(toy->Encode("hello world", "hi", 5).truncated);  // the first text
  EXPECT_TRUE(toy->Encode("hello", "hi !", 5).truncated);      // the second
}

TEST(TokenizerTest, UnigramFusesUnknowns) {
  const Unigram model({{"<s>", 0},
                       {"<pad>", 0},
                       {"</s>", 0},
                       {"<unk>", 0},
                       {"▁", -2},
                       {"▁hello", -3},
                       {"hello", -4},
                       {"▁he", -2.5},
                       {"llo", -2.5},
                       {"▁world", -3},
                       {"l", -5},
                       {"o", -5},
                       {"h", -5},
                       {"e", -5},
                       {"x", -6},
                       {"▁x", -5.5},
                       {",", -3}},
                      3);
  const auto encode = [&](std::string_view word) {
    std::vector<int32_t> ids;
    model.Encode(word, &ids);
    return ids;
  };
  EXPECT_EQ(encode("▁helloworld"), (std::vector<int32_t>{5, 3, 11, 3, 10, 3}));
  EXPECT_EQ(encode("▁hello,zzx"), (std::vector<int32_t>{5, 16, 3, 14}));
  EXPECT_EQ(encode("▁zz"), (std::vector<int32_t>{4, 3}));
}

// The pieces x, a, aa have the same score as x, aa, a. `tokenizers` rounds the scores of a file
// otherwise, so there the two sums differ in their last bit. The expected ids come from
// `tokenizers`: from its reading of the file, and from its Unigram model made of the same scores.
TEST(TokenizerTest, ScoresAreReadAsTransformersReadsThem) {
  const std::string json = R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0],
      ["[CLS]", 0.0], ["[SEP]", 0.0], ["x", -10.259105682373047], ["a", -9.120443344116211],
      ["aa", -10.245549201965332], ["b", 1e-7], ["c", -2.5e+20], ["d", -3]]}})";
  const auto ids = [&](const std::string& config) {
    return TokenizerFromContents("dir",
                                 {{"tokenizer.json", json}, {"tokenizer_config.json", config}}, "")
        ->Encode("xaaa")
        .input_ids;
  };
  EXPECT_EQ(ids("{}"), (std::vector<int32_t>{3, 5, 4}));
  EXPECT_EQ(ids(R"({"backend": "tokenizers"})"), (std::vector<int32_t>{3, 5, 4}));
  EXPECT_EQ(ids(R"({"tokenizer_class": "AlbertTokenizer"})"),
            (std::vector<int32_t>{1, 3, 5, 4, 2}));
  EXPECT_EQ(ids(R"({"tokenizer_class": "AlbertTokenizer", "backend": "tokenizers"})"),
            (std::vector<int32_t>{1, 3, 4, 5, 2}));
}

TEST(TokenizerTest, ErrorsNameTheFile) {
  const auto message = [](std::map<std::string, std::string> files) -> std::string {
    try {
      TokenizerFromContents("dir", std::move(files), "bert");
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  EXPECT_NE(message({}).find("looked for tokenizer.json, vocab.txt"), std::string::npos);
  EXPECT_EQ(message({{"vocab.txt", ""}}), "dir/vocab.txt: the vocabulary is empty");
  EXPECT_EQ(message({{"vocab.txt", "a\n\xFF\n"}}), "dir/vocab.txt:2: the token is not valid UTF-8");
  EXPECT_EQ(message({{"vocab.txt", "a\n"}}),
            "dir/vocab.txt: the vocabulary has no unknown token '[UNK]'");
  EXPECT_TRUE(
      message({{"tokenizer.json", "{\n,"}}).starts_with("dir/tokenizer.json:2: not valid JSON"));
  EXPECT_THROW(Toy(true)->Encode("a", std::nullopt, 1), Error);
  for (const char* key : {"x", "12x", "-1", "99999999999999999999"}) {
    const std::string config =
        std::string(R"({"added_tokens_decoder": {")") + key + R"(": {"content": "new"}}})";
    EXPECT_EQ(message({{"vocab.txt", "[UNK]\n[CLS]\n[SEP]\n"}, {"tokenizer_config.json", config}}),
              std::string("dir/tokenizer_config.json: added_tokens_decoder has '") + key +
                  "' where an id must be");
  }
}

// The ids are those of Transformers 5.24.
TEST(TokenizerTest, OldFilesOfTokens) {
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nhello\n##foo\n[BEG]\nfoo\n";
  const auto ids = [&](std::map<std::string, std::string> files, const std::string& text) {
    files["vocab.txt"] = vocab;
    return TokenizerFromContents("dir", std::move(files), "bert")->Encode(text).input_ids;
  };
  using Ids = std::vector<int32_t>;
  const std::string two = R"({"bar baz": 15, "[NEW]": 12})";  // the next free ids are taken
  EXPECT_EQ(ids({{"added_tokens.json", two}}, "A [new] hello bar baz"), (Ids{2, 5, 10, 6, 11, 3}));
  EXPECT_EQ(ids({{"added_tokens.json", two}}, "bar bazfoo BAR BAZ"), (Ids{2, 11, 9, 11, 3}));
  EXPECT_EQ(ids({{"added_tokens.json", R"({"foo": 9, "": 10})"}}, "hellofoo"), (Ids{2, 6, 9, 3}));
  // A special token is looked for in the text as it is.
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const std::map<std::string, std::string> files = {
        {"added_tokens.json", R"({"[NEW]": 10})"},
        {"special_tokens_map.json", "{\"" + std::string(key) + "\": [\"[NEW]\"]}"}};
    EXPECT_EQ(ids(files, "a [NEW] hello"), (Ids{2, 5, 10, 6, 3})) << key;
    EXPECT_EQ(ids(files, "a [new]"), (Ids{2, 5, 1, 1, 1, 3})) << key;
  }
  const std::string begin = R"({"cls_token": "[BEG]"})";
  EXPECT_EQ(ids({{"special_tokens_map.json", begin},
                 {"tokenizer_config.json", R"({"cls_token": "[CLS]"})"}},
                "a"),
            (Ids{8, 5, 3}));
  // With "added_tokens_decoder" neither of the old files is read.
  EXPECT_EQ(
      ids({{"special_tokens_map.json", begin},
           {"added_tokens.json", two},
           {"tokenizer_config.json", R"({"added_tokens_decoder": {"0": {"content": "[PAD]"}}})"}},
          "a bar"),
      (Ids{2, 5, 1, 3}));
  const auto error = [&](const std::string& tokens) -> std::string {
    try {
      ids({{"added_tokens.json", tokens}}, "a");
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  EXPECT_EQ(error(R"({"a": "x"})"), "dir/added_tokens.json: \"a\" must be a token with its id");
  EXPECT_EQ(error(R"({"a": 1, "b": 1})"), "dir/added_tokens.json: two tokens have the id 1");
  EXPECT_EQ(error("[]"), "dir/added_tokens.json: must hold a JSON object");
}

// Transformers 4 saves a folder of SqueezeBERT with this class.
TEST(TokenizerTest, OtherNamesOfBert) {
  for (const char* name : {"SqueezeBertTokenizer", "ConvBertTokenizerFast"}) {
    const auto tokenizer = TokenizerFromContents(
        "dir",
        {{"vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\n##b\n"},
         {"tokenizer_config.json", "{\"tokenizer_class\": \""s + name + "\"}"}},
        "");
    EXPECT_EQ(tokenizer->Encode("AB").input_ids, (std::vector<int32_t>{1, 3, 4, 2})) << name;
    EXPECT_TRUE(tokenizer->makes_token_type_ids()) << name;
  }
}

// A copy of the text for each of these letters, which are newer than Oniguruma's tables, would
// exceed the test's time.
TEST(TokenizerTest, ManyNewerLetters) {
  const Normalizer normalizer = NormalizerFromJson(
      ParseJson(R"({"type": "Replace", "pattern": {"Regex": "\\p{L}+"}, "content": "x"})"));
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "\U00010D50";
  EXPECT_EQ(normalizer(text), "x");
}

// The lists are those of `tokenizers`.
TEST(TokenizerTest, PunctuationOfRegularExpressionsHasSymbols) {
  const auto without = [](const std::string& pattern, const std::string& text) {
    return NormalizerFromJson(
        {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", ""}})(text);
  };
  const std::string text = "a<b>'c-d$e^🙂f~g\u20AC[:punct]";
  EXPECT_EQ(without("[[:punct:]]", text), "abcdefgpunct");
  EXPECT_EQ(without("[[:punct:]a-c]+", text), "defgpunt");
  EXPECT_EQ(without("[]a[:punct:]]", text), "bcdefgpunct");
  EXPECT_EQ(without("[x[:digit:][c[:punct:]]]", text), "abdefgpunt");
  EXPECT_EQ(without("[^[:punct:]]", text), "<>'-$^🙂~\u20AC[:]");
  EXPECT_EQ(without("[[:^punct:]]", text), "<>'-$^🙂~\u20AC[:]");
  EXPECT_EQ(without("[[:punct:]&&[^<>]]", text), "a<b>cdefgpunct");
  EXPECT_EQ(without("(?P)[[:punct:]]", text), "abcde🙂fg\u20ACpunct");
  // Neither of these is the bracket.
  EXPECT_EQ(without("[:punct:]", text), "a<b>'-d$e^🙂f~g\u20AC[]");
  EXPECT_EQ(without(R"([\[:punct:])", text), "a<b>'-d$e^🙂f~g\u20AC]");
}

TEST(TokenizerTest, RobertaFromVocabAndMerges) {
  const std::string vocab = R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "h": 4, "i": 5,
      "Ġ": 6, "hi": 7, "Ġhi": 8, "<mask>": 9})";
  std::map<std::string, std::string> files = {{"vocab.json", vocab},
                                              {"merges.txt", "#version: 0.2\nh i\nĠ hi\n"}};
  const auto roberta = TokenizerFromContents("dir", files, "");
  EXPECT_EQ(roberta->Encode("hi hi <mask>").input_ids, (std::vector<int32_t>{0, 7, 8, 9, 2}));
  EXPECT_EQ(roberta->Encode("hi", "hi").input_ids, (std::vector<int32_t>{0, 7, 2, 2, 7, 2}));
  EXPECT_EQ(roberta->pad_token_id(), 1);
  EXPECT_FALSE(roberta->makes_token_type_ids());
  EXPECT_NE(roberta->files().at("tokenizer_config.json").find("RobertaTokenizer"),
            std::string::npos);
  files["tokenizer_config.json"] = R"({"add_prefix_space": true})";
  EXPECT_EQ(TokenizerFromContents("dir", files, "roberta")->Encode("hi").input_ids,
            (std::vector<int32_t>{0, 8, 2}));
  const auto reason = [&](const char* name, const std::string& contents) -> std::string {
    std::map<std::string, std::string> damaged = files;
    damaged[name] = contents;
    try {
      TokenizerFromContents("dir", damaged, "");
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  EXPECT_TRUE(reason("merges.txt", "h i\nh i i\n").starts_with("dir/merges.txt:2: 'h i i'"));
  EXPECT_TRUE(reason("merges.txt", "h q\n").starts_with("dir/merges.txt: [bpe] "));
  EXPECT_EQ(reason("vocab.json", "[0, 1]"),
            "dir/vocab.json: [tokenizer] the vocabulary must be an object of tokens and ids but is "
            "array");
  EXPECT_EQ(reason("vocab.json", "[\"h\"]"), reason("vocab.json", "[0]"));
  EXPECT_TRUE(reason("vocab.json", R"({"h": 1e99})").starts_with("dir/vocab.json: [tokenizer] "));
  EXPECT_EQ(reason("vocab.json", R"({"h": "0"})"),
            "dir/vocab.json: type must be number, but is string");
  files.erase("merges.txt");
  EXPECT_THROW(TokenizerFromContents("dir", files, "roberta"), Error);
}

TEST(TokenizerTest, StripsWhiteSpaceOfAnyWidth) {
  const auto strip = [](bool left, bool right) {
    return NormalizerFromJson({{"type", "Strip"}, {"strip_left", left}, {"strip_right", right}})(
        "\u3000 \u00A0a b\u00A0 \u3000");
  };
  EXPECT_EQ(strip(true, true), "a b");
  EXPECT_EQ(strip(true, false), "a b\u00A0 \u3000");
  EXPECT_EQ(strip(false, true), "\u3000 \u00A0a b");
  EXPECT_EQ(NormalizerFromJson(nlohmann::json{{"type", "Strip"}})("\u3000 "), "");
}

TEST(Utf8Test, FindsAndReplacesInvalid) {
  EXPECT_EQ(ValidateUtf8("aé我😀"), std::string_view::npos);
  EXPECT_EQ(ValidateUtf8("a\xC0\x80"), 1u);
  EXPECT_EQ(ValidateUtf8("ab\xED\xA0\x80"), 2u);
  EXPECT_EQ(ValidateUtf8("\xF4\x90\x80\x80"), 0u);
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE6\x88z"), "a\uFFFDz");
}

TEST(TokenizerFamilyTest, AFamilyIsFoundByItsModelTypeAndByItsClass) {
  ASSERT_EQ(FindTokenizerFamily("", "new"), nullptr);
  RegisterTokenizerFamily({.model_type = "new", .tokenizer_class = "NewTokenizer", .pad = "<p>"});
  const TokenizerFamily* const family = FindTokenizerFamily("", "new");
  ASSERT_NE(family, nullptr);
  EXPECT_EQ(FindTokenizerFamily("NewTokenizerFast", "bert"), family);
  EXPECT_STREQ(family->pad, "<p>");
  EXPECT_NE(SupportedTokenizers().find("albert, bert, new and roberta,"), std::string::npos);

  EXPECT_THROW(RegisterTokenizerFamily({.model_type = "new", .tokenizer_class = "Other"}), Error);
  EXPECT_THROW(RegisterTokenizerFamily({.model_type = "other", .tokenizer_class = "BertTokenizer"}),
               Error);
  EXPECT_THROW(RegisterTokenizerFamily({.model_type = "other"}), Error);
  EXPECT_EQ(FindTokenizerFamily("", "other"), nullptr);
}

}  // namespace
}  // namespace lathe
