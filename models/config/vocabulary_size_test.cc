#include "lathe/models/config/vocabulary_size.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

class VocabularyTest : public testing::Test {
 protected:
  // Returns the note for a vocab.txt of `num_tokens` lines and a config that says `vocab_size`.
  std::string Note(int64_t num_tokens, int64_t vocab_size) {
    std::filesystem::create_directories(dir_);
    std::ofstream vocab(dir_ + "/vocab.txt");
    vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int64_t i = 5; i < num_tokens; ++i) vocab << "token" << i << "\n";
    vocab.close();
    return CheckVocabularySize(*LoadTokenizer(dir_, "bert"),
                               PretrainedConfig::FromJson({{"vocab_size", vocab_size}}, "c.json"),
                               "mend it");
  }
  bool Refuses(int64_t num_tokens, int64_t vocab_size) {
    try {
      Note(num_tokens, vocab_size);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), dir_ + "/vocab.txt: the tokenizer has " +
                                     std::to_string(num_tokens) + " tokens but vocab_size is " +
                                     std::to_string(vocab_size) + " in c.json");
      EXPECT_EQ(error.hint(), "mend it");
      return true;
    }
  }

  const std::string dir_ = testing::TempDir() + "/vocabulary_size_test";
};

TEST_F(VocabularyTest, EqualSizesNeedNoNote) {
  EXPECT_EQ(Note(30522, 30522), "");
  EXPECT_EQ(Note(7, 7), "");
  EXPECT_EQ(Note(40, 32), "");  // fails later, if a text has an id from 32 on
}

TEST_F(VocabularyTest, TablesPaddedToAMultiplePass) {
  EXPECT_EQ(Note(30522, 30528),  // a multiple of 8, 16, 32 and 64
            dir_ +
                "/vocab.txt: the tokenizer has 30522 tokens but vocab_size is 30528 in c.json; "
                "Lathe takes the surplus rows for padding");
  EXPECT_NE(Note(30522, 30592), "");  // 128
  EXPECT_NE(Note(28996, 29000), "");  // 8
  EXPECT_NE(Note(31999, 32000), "");
}

TEST_F(VocabularyTest, CutOffVocabulariesAreRefused) {
  EXPECT_TRUE(Refuses(30521, 30522));
  EXPECT_TRUE(Refuses(30500, 30522));
  EXPECT_TRUE(Refuses(30400, 30528));  // 128 more, but not the next multiple of any
  EXPECT_TRUE(Refuses(31872, 32000));  // 31872 is a multiple of 128 already
  EXPECT_TRUE(Refuses(30522, 30532));  // a multiple of 4 is no padding
  EXPECT_TRUE(Refuses(31, 32));        // more than 1 % of padding
  EXPECT_TRUE(Refuses(98, 99));
}

// A file that can't be cut off unnoticed.
TEST_F(VocabularyTest, ATokenizerJsonMayHaveAFewTokensLess) {
  nlohmann::json vocab = {{"[UNK]", 0}, {"[PAD]", 1}, {"[CLS]", 2}, {"[SEP]", 3}, {"[MASK]", 4}};
  for (int i = 5; i < 1000; ++i) vocab["token" + std::to_string(i)] = i;
  std::filesystem::create_directories(dir_ + "/json");
  std::ofstream(dir_ + "/json/tokenizer.json") << nlohmann::json{
      {"model", {{"type", "WordPiece"}, {"vocab", vocab}, {"unk_token", "[UNK]"}}}};
  const auto tokenizer = LoadTokenizer(dir_ + "/json", "bert");
  const auto check = [&](int64_t vocab_size) {
    return CheckVocabularySize(*tokenizer,
                               PretrainedConfig::FromJson({{"vocab_size", vocab_size}}, "c.json"));
  };
  EXPECT_EQ(check(1000), "");
  EXPECT_EQ(check(1001), dir_ +
                             "/json/tokenizer.json: the tokenizer has 1000 tokens but vocab_size "
                             "is 1001 in c.json; Lathe takes the surplus rows for padding");
  EXPECT_NE(check(1010), "");
  EXPECT_THROW(check(1011), Error);  // more than 1 %
}

}  // namespace
}  // namespace lathe
