// Messages for tokenizers that are damaged, make no sense or have unknown parts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/load_tokenizer.h"
#include "lathe/data/tokenizers/model.h"
#include "lathe/data/tokenizers/models/sentencepiece_model.h"
#include "lathe/data/tokenizers/normalizer.h"
#include "lathe/data/tokenizers/post_processor.h"
#include "lathe/data/tokenizers/pre_tokenizer.h"
#include "lathe/data/tokenizers/unicode/charsmap.h"

namespace lathe {
namespace {

using namespace std::string_literals;

// Loads a tokenizer.json that is right but for one key, and returns the error's message and hint.
std::pair<std::string, std::string> ErrorOf(const std::string& key, const std::string& value,
                                            const std::string& tokenizer_class = "") {
  std::string json = R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}})";
  json = key == "model" ? R"({"model": )" + value : json + ", \"" + key + "\": " + value;
  try {
    TokenizerFromContents(
        "dir",
        {{"tokenizer.json", json + "}"},
         {"tokenizer_config.json", "{\"tokenizer_class\": \"" + tokenizer_class + "\"}"}},
        "");
  } catch (const Error& error) {
    return {error.message(), error.hint()};
  }
  return {"no error", ""};
}

// A pipe tells nothing before somebody writes to it, so nothing may wait for it.
TEST(TokenizerTest, RefusesAPipeInThePlaceOfAFile) {
  const std::string dir = testing::TempDir() + "tokenizer_errors_test_pipe";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  ASSERT_EQ(mkfifo((dir + "/vocab.txt").c_str(), 0600), 0);
  try {
    LoadTokenizer(dir, "bert");
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), dir + "/vocab.txt: is not a regular file");
  }
}

// Ids that an int32_t can't hold must not become others, and rules must not fill the memory.
TEST(TokenizerTest, RefusesAbsurdNumbersAndGrowth) {
  const auto starts = [](const char* part, const std::string& value, const char* start) {
    const std::string error = ErrorOf(part, value).first;
    EXPECT_TRUE(error.starts_with(std::string("dir/tokenizer.json: ") + part + ": " + start))
        << error;
  };
  starts("added_tokens", R"([{"id": 4294967296, "content": "x"}])",
         "the id of token 'x' must be a whole number from 0 to 9999999 but is 4294967296");
  starts("post_processor", R"({"type": "BertProcessing", "sep": ["", 1], "cls": ["", -1]})",
         "the id of token 'cls' must be a whole number from 0");
  starts("pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})",
         "Metaspace has the replacement 'ab', which is not one character");
  starts("model", R"({"type": "WordPiece", "vocab": [0, 1]})",
         "the vocabulary must be an object of tokens and ids but is array");
  std::string doublings, byte_levels;
  for (int i = 0; i < 40; ++i) {
    const std::string comma = i == 0 ? "" : ",";
    doublings += comma + R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
    byte_levels += comma + R"({"type": "ByteLevel"})";
  }
  starts("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [)" + byte_levels + "]}",
         "Sequence has ByteLevel 40 times");
  const auto tokenizer = TokenizerFromContents(
      "dir",
      {{"tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}},
                              "normalizer": {"type": "Sequence", "normalizers": [)" +
                              doublings + "]}}"}},
      "");
  EXPECT_THROW(tokenizer->Encode("a"), Error);
}

// The JSON library's own messages say neither where the value is nor whose it is.
TEST(TokenizerTest, ErrorsNameThePart) {
  const auto starts = [](const char* part, const char* value) {
    const std::string error = ErrorOf(part, value).first;
    EXPECT_TRUE(error.starts_with(std::string("dir/tokenizer.json: ") + part + ": ")) << error;
  };
  starts("model", R"({"type": "Unigram", "unk_id": "a", "vocab": [["a", 0]]})");
  starts("model", R"({"type": "BPE", "vocab": {"a": 0}, "merges": [1]})");
  starts("normalizer", R"({"type": "Prepend"})");
  starts("pre_tokenizer", "[1]");
  starts("post_processor", R"({"type": "BertProcessing", "sep": ["[SEP]"], "cls": ["[CLS]", 2]})");
  starts("added_tokens", R"(["x"])");
}

TEST(TokenizerTest, HintsListWhatIsSupported) {
  using Pair = std::pair<std::string, std::string>;
  const std::string other = R"({"type": "Other"})";
  EXPECT_EQ(ErrorOf("normalizer", "null").first, "no error");
  EXPECT_EQ(ErrorOf("normalizer", other),
            Pair("dir/tokenizer.json: normalizer 'Other' is not supported",
                 "Lathe supports BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, "
                 "Strip, Prepend, Replace, Precompiled, Nmt, ByteLevel and Sequence"));
  EXPECT_EQ(
      ErrorOf("normalizer", R"({"type": "Replace", "content": "", "pattern": {"Regex": "[a-z"}})")
          .first,
      "dir/tokenizer.json: normalizer: '[a-z' is not a regular expression: premature end of "
      "char-class");
  EXPECT_EQ(ErrorOf("pre_tokenizer", other),
            Pair("dir/tokenizer.json: pre_tokenizer 'Other' is not supported",
                 "Lathe supports BertPreTokenizer, ByteLevel, WhitespaceSplit, Whitespace, "
                 "Punctuation, Digits, Split, CharDelimiterSplit, FixedLength, UnicodeScripts, "
                 "Metaspace and Sequence"));
  EXPECT_EQ(ErrorOf("pre_tokenizer", R"({"type": "Metaspace", "prepend_scheme": "last"})"),
            Pair("dir/tokenizer.json: pre_tokenizer Metaspace has the prepend_scheme 'last', which "
                 "is not supported",
                 "Lathe supports 'always', 'first' and 'never'"));
  EXPECT_EQ(ErrorOf("pre_tokenizer", R"({"type": "Punctuation", "behavior": "Other"})"),
            Pair("dir/tokenizer.json: pre_tokenizer Punctuation has behavior 'Other', which is not "
                 "supported",
                 "Lathe supports Removed, Isolated, MergedWithPrevious, MergedWithNext and "
                 "Contiguous"));
  EXPECT_EQ(ErrorOf("post_processor", other),
            Pair("dir/tokenizer.json: post_processor 'Other' is not supported",
                 "Lathe supports TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel "
                 "and Sequence"));
  EXPECT_EQ(ErrorOf("model", other), Pair("dir/tokenizer.json: model 'Other' is not supported",
                                          "Lathe supports WordPiece, BPE, Unigram and WordLevel"));
  EXPECT_EQ(ErrorOf("normalizer", "null", "OtherTokenizer"),
            Pair("dir/tokenizer_config.json: tokenizer_class 'OtherTokenizer' is not supported",
                 "Lathe supports the tokenizers of albert, bert and roberta, and a tokenizer.json "
                 "with a WordPiece, BPE, Unigram or WordLevel model"));
  for (const char* name :
       {"ConvBertTokenizer", "MobileBertTokenizerFast", "SqueezeBertTokenizer"}) {
    EXPECT_EQ(ErrorOf("normalizer", "null", name).first.find("not supported"), std::string::npos)
        << name;
  }
}

// The part is a detail of the error, so that no code looks for its name in the message.
TEST(TokenizerTest, ErrorsThatNameTheirPartCarryIt) {
  const auto part_of = [](const auto& read, const char* json) -> std::string {
    try {
      read(ParseJson(json));
    } catch (const Error& error) {
      const auto* about = error.detail<AboutPart>();
      return about == nullptr ? "none" : about->part;
    }
    return "no error";
  };
  EXPECT_EQ(part_of(NormalizerFromJson, R"({"type": "Other"})"), "normalizer");
  EXPECT_EQ(part_of(NormalizerFromJson,
                    R"({"type": "Replace", "content": "", "pattern": {"String": ""}})"),
            "none");
  EXPECT_EQ(part_of(PreTokenizerFromJson, R"({"type": "Metaspace", "prepend_scheme": "last"})"),
            "pre_tokenizer");
  EXPECT_EQ(part_of(PreTokenizerFromJson,
                    R"({"type": "Split", "behavior": "x", "pattern": {"String": "a"}})"),
            "pre_tokenizer");
  const std::string twice = R"({"type": "BertProcessing", "sep": ["s", 1], "cls": ["c", 2]})";
  const std::string processors =
      R"({"type": "Sequence", "processors": [)" + twice + "," + twice + "]}";
  EXPECT_EQ(part_of(PostProcessorFromJson, processors.c_str()), "post_processor");
  EXPECT_EQ(part_of(SubwordModelFromJson, R"({"type": "BPE", "dropout": 0.5})"), "model");
  EXPECT_EQ(part_of(SubwordModelFromJson, R"({"type": "BPE", "vocab": [], "merges": []})"), "none");
}

TEST(TokenizerTest, BrokenBpeModels) {
  const auto error = [](const std::string& keys) {
    return ErrorOf("model", R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, )" + keys + "}");
  };
  EXPECT_EQ(error(R"("merges": ["a b"])").first, "no error");
  EXPECT_EQ(error(R"("merges": [["a", "b"]], "dropout": 0.0)").first, "no error");
  EXPECT_EQ(error(R"("merges": [], "dropout": 0.1)").first,
            "dir/tokenizer.json: model BPE with dropout 0.1 is not supported");
  EXPECT_EQ(error(R"("merges": ["a c"])").first,
            "dir/tokenizer.json: model: merge 1, 'a c', needs 'c', which is not in the vocabulary");
  EXPECT_EQ(
      error(R"("merges": ["b a"])").first,
      "dir/tokenizer.json: model: merge 1, 'b a', needs 'ba', which is not in the vocabulary");
  EXPECT_EQ(error(R"("merges": [["a", "b", "c"]])").first,
            "dir/tokenizer.json: model: merge 1 has 3 symbols, not 2");
  EXPECT_EQ(error(R"("merges": ["ab"])").first,
            "dir/tokenizer.json: model: merge 1: 'ab' is not a merge, which is two symbols with "
            "one space between them");
  EXPECT_EQ(error(R"("merges": [], "unk_token": "?")").first,
            "dir/tokenizer.json: model: the vocabulary has no unknown token '?'");
}

TEST(TokenizerTest, BrokenSentencePieceModel) {
  // The cases: noise, an empty file, a model that is cut off, one without pieces, and one whose
  // second piece is a NUL.
  for (const std::string& bytes : {"not a model"s, ""s, "\x0A\x40\x0A\x03"s, "\x12\x02\x18\x01"s,
                                   "\x0A\x07\x0A\x03unk\x18\x02\x0A\x03\x0A\x01\0"s}) {
    testing::internal::CaptureStderr();
    try {
      TokenizerFromContents("dir", {{"spiece.model", bytes}}, "albert");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "dir/spiece.model: not a SentencePiece model");
      EXPECT_NE(error.hint(), "");
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  }
}

TEST(TokenizerTest, PiecesThatAreNotUtf8) {
  const std::string bytes = "\x0A\x03\x0A\x01\xFF";  // a piece with one byte of text
  EXPECT_THROW(ParseSentencePieceModel(bytes, "spiece.model"), Error);
}

TEST(CharsmapTest, DamagedMapsAreErrors) {
  EXPECT_THROW(Charsmap("abc"), Error);
  EXPECT_THROW(Charsmap("\x08\0\0\0abcd"s), Error);      // eight bytes, but four follow
  EXPECT_EQ(Charsmap("\0\0\0\0"s).Normalize("a"), "a");  // a trie without nodes
}

// Makes "b" of "A", and nothing else, but for a change of one unit of the trie.
Charsmap MapWith(size_t at, uint32_t unit) {
  std::vector<uint32_t> trie(256, 1u << 31);
  trie[0] = 1 << 10;                          // leads to the units 1 ^ byte
  trie[1 ^ 'A'] = 'A' | 1 << 8 | 0x80 << 10;  // has a leaf, 0x80 from here
  trie[1 ^ 'A' ^ 0x80] = 1u << 31;            // the text at 0
  trie[at] = unit;
  const auto size = static_cast<uint32_t>(trie.size() * sizeof(uint32_t));
  std::string blob(reinterpret_cast<const char*>(&size), sizeof size);
  blob.append(reinterpret_cast<const char*>(trie.data()), size);
  return Charsmap(blob + "b" + '\0');
}

TEST(CharsmapTest, TriesThatSentencePieceMustNotGetAreErrors) {
  const Charsmap sound = MapWith(1, 1u << 31);
  sound.CheckTrie();
  EXPECT_EQ(sound.Normalize("AB"), "bB");
  EXPECT_THROW(Charsmap("\0\0\0\0"s).CheckTrie(), Error);
  EXPECT_THROW(MapWith(0, 256 << 10).CheckTrie(), Error);                  // after the last unit
  EXPECT_THROW(MapWith(1 ^ 'A' ^ 0x80, 1u << 31 | 2).CheckTrie(), Error);  // after the texts
  EXPECT_THROW(MapWith(1 ^ 'A', 'A' | 'A' << 10).CheckTrie(), Error);      // to itself
}

TEST(CharsmapTest, MapsOfRealModelsAreSound) {
  const char* const golden = std::getenv("LATHE_GOLDEN_DIR");
  if (golden == nullptr) GTEST_SKIP() << "LATHE_GOLDEN_DIR is not set";
  for (const char* name :
       {"albert/spiece.model", "deberta-v3/spm.model", "xlm-roberta/sentencepiece.bpe.model"}) {
    const std::string path = std::string(golden) + "/tokenizers/" + name;
    const auto info = ParseSentencePieceModel(ReadFile(path), path);
    ASSERT_FALSE(info.precompiled_charsmap.empty()) << path;
    EXPECT_NO_THROW(Charsmap(info.precompiled_charsmap).CheckTrie()) << path;
  }
}

}  // namespace
}  // namespace lathe
