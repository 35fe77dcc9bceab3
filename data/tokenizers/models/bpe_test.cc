#include "lathe/data/tokenizers/models/bpe.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace lathe {
namespace {

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  bpe.Encode(word, &ids);
  return ids;
}

// Returns the merges a a, aa aa, and so on: each doubles the length.
Bpe Doubling(int count) {
  std::vector<std::string> tokens = {"a"};
  Bpe::Merges merges;
  for (int i = 0; i < count; ++i) {
    merges.emplace_back(tokens.back(), tokens.back());
    tokens.push_back(tokens.back() + tokens.back());
  }
  return Bpe(tokens, merges);
}

TEST(BpeTest, MergesLeftmostFirst) {
  const Bpe bpe = Doubling(2);
  EXPECT_EQ(Encode(bpe, ""), std::vector<int32_t>());
  EXPECT_EQ(Encode(bpe, "aaa"), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(Encode(bpe, "aaaaaaa"), (std::vector<int32_t>{2, 1, 0}));
}

TEST(BpeTest, AWordOfAMegabyteTakesNoQuadraticTime) {
  const Bpe bpe = Doubling(20);
  EXPECT_EQ(Encode(bpe, std::string(1 << 20, 'a')), std::vector<int32_t>{20});
  EXPECT_EQ(Encode(bpe, std::string((1 << 14) - 1, 'a')).size(), 14u);
}

TEST(BpeTest, ModelsDontShareCachedWords) {
  const Bpe first({"a", "b", "ab"}, {{"a", "b"}});
  const Bpe second({"b", "a"}, {});
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(Encode(first, "ab"), std::vector<int32_t>{2});
    EXPECT_EQ(Encode(second, "ab"), (std::vector<int32_t>{1, 0}));
  }
}

TEST(BpeTest, ThreadsEncodeAtTheSameTime) {
  const Bpe bpe = Doubling(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&bpe] {
      for (size_t size = 1; size < 300; ++size) {
        size_t length = 0;
        for (const int32_t id : Encode(bpe, std::string(size, 'a'))) {
          length += size_t{1} << id;
        }
        EXPECT_EQ(length, size);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(BpeTest, LaterMergesOfAPairReplaceEarlierOnes) {
  // Only the second ("a", "b") counts, so ("b", "c") is merged first.
  const Bpe bpe({"a", "b", "c", "ab", "bc"}, {{"a", "b"}, {"b", "c"}, {"a", "b"}});
  EXPECT_EQ(Encode(bpe, "abc"), (std::vector<int32_t>{0, 4}));
}

}  // namespace
}  // namespace lathe
