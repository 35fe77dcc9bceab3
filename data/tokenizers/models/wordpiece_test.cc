#include "lathe/data/tokenizers/models/wordpiece.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Ids = std::vector<int32_t>;

Ids Encode(const WordPiece& model, std::string_view word) {
  Ids ids;
  model.Encode(word, &ids);
  return ids;
}

// Returns the characters of a UTF-8 text.
std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) characters.emplace_back();
    characters.back() += c;
  }
  return characters;
}

// WordPiece as it is defined: looks for the next piece in the vocabulary from the longest down.
Ids Defined(const std::unordered_map<std::string, int32_t>& vocabulary, const std::string& prefix,
            std::string_view word) {
  const std::vector<std::string> characters = Characters(word);
  Ids ids;
  for (size_t begin = 0; begin < characters.size();) {
    size_t end = characters.size();
    for (; end > begin; --end) {
      std::string piece = begin > 0 ? prefix : "";
      for (size_t i = begin; i < end; ++i) piece += characters[i];
      if (const auto found = vocabulary.find(piece); found != vocabulary.end()) {
        ids.push_back(found->second);
        break;
      }
    }
    if (end == begin) return {0};
    begin = end;
  }
  return ids;
}

TEST(WordPiece, TakesTheLongestPieceAsDefined) {
  std::mt19937 random(1);
  // The characters have one byte each, except for two that begin with the same byte.
  const std::vector<std::string> alphabet = {"a", "b", "é", "è", "#"};
  const auto word = [&](size_t longest) {
    std::string text;
    const size_t length = 1 + random() % longest;
    for (size_t i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
    return text;
  };
  int64_t unknown = 0, several = 0;
  for (const std::string prefix : {"##", "", "@"}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> tokens = {"[UNK]"};
      for (int i = 0; i < 60; ++i) tokens.push_back((random() % 2 == 0 ? prefix : "") + word(4));
      std::unordered_map<std::string, int32_t> vocabulary;
      for (size_t i = 0; i < tokens.size(); ++i) vocabulary[tokens[i]] = static_cast<int32_t>(i);
      const WordPiece model(tokens, {.continuing_subword_prefix = prefix});
      for (int i = 0; i < 200; ++i) {
        const std::string text = word(9);
        const Ids ids = Encode(model, text);
        EXPECT_EQ(ids, Defined(vocabulary, prefix, text)) << text;
        unknown += ids == Ids{0} ? 1 : 0;
        several += ids.size() > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(unknown, 1000);
  EXPECT_GT(several, 1000);
}

TEST(WordPiece, OfEqualTokensTheLastOneCounts) {
  const WordPiece model({"[UNK]", "a", "##b", "a", "##b"});
  EXPECT_EQ(Encode(model, "a"), Ids({3}));
  EXPECT_EQ(Encode(model, "ab"), Ids({3, 4}));
}

TEST(WordPiece, APrefixAloneGoesOnWithNothing) {
  const WordPiece model({"[UNK]", "a", "##", ""});
  EXPECT_EQ(Encode(model, "##"), Ids({2}));
  EXPECT_EQ(Encode(model, "a"), Ids({1}));
  EXPECT_EQ(Encode(model, "aa"), Ids({0}));
  EXPECT_EQ(Encode(model, ""), Ids());
}

TEST(WordPiece, LongWordsAreUnknownByTheirCharacters) {
  const WordPiece model({"[UNK]", "é", "##é"}, {.max_input_chars_per_word = 3});
  EXPECT_EQ(Encode(model, "ééé"), Ids({1, 2, 2}));
  EXPECT_EQ(Encode(model, "éééé"), Ids({0}));
}

TEST(WordPiece, NeedsItsUnknownToken) {
  EXPECT_THROW(WordPiece({"a", "##b"}), Error);
  EXPECT_EQ(Encode(WordPiece({"a", "<unk>"}, {.unk_token = "<unk>"}), "b"), Ids({1}));
}

// An unknown word leaves the ids that were there before it.
TEST(WordPiece, AppendsToWhatIsThere) {
  const WordPiece model({"[UNK]", "a", "##b"});
  Ids ids = {7};
  model.Encode("abc", &ids);
  model.Encode("ab", &ids);
  EXPECT_EQ(ids, Ids({7, 0, 1, 2}));
}

TEST(PieceTrie, FindsAllThatBeginAtOnePlace) {
  const PieceTrie trie(
      {{"ab", 5}, {"a", 1}, {"abc", 2}, {"b", 3}, {"ab", 4}, {"", 9}, {"\xff", 0}});
  const auto walk = [&](std::string_view text) {
    std::vector<int32_t> found;
    uint32_t node = PieceTrie::kRoot;
    for (const char c : text) {
      node = trie.Child(node, static_cast<uint8_t>(c));
      if (node == PieceTrie::kRoot) break;
      found.push_back(trie.id(node));
    }
    return found;
  };
  EXPECT_EQ(walk("abcd"), Ids({1, 5, 2}));
  EXPECT_EQ(walk("bb"), Ids({3}));
  EXPECT_EQ(walk("c"), Ids());
  EXPECT_EQ(walk("\xff"), Ids({0}));
  EXPECT_EQ(trie.id(PieceTrie::kRoot), -1);
  EXPECT_EQ(PieceTrie().Child(PieceTrie::kRoot, 'a'), PieceTrie::kRoot);
}

}  // namespace
}  // namespace lathe
