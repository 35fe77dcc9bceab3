#include "lathe/data/table_files/text_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/philox.h"
#include "lathe/data/table_files/compress_testing.h"

namespace lathe {
namespace {

std::string Write(const std::string& extension, const std::string& bytes) {
  const std::string path =
      testing::TempDir() + "/stream_" + std::to_string(getpid()) + ".csv" + extension;
  WriteFileAtomically(path, bytes);
  return path;
}

std::string ReadInBlocks(const std::string& path, size_t block) {
  TextStream stream(path);
  std::string all, piece(block, '\0');
  while (const size_t size = stream.Read(piece.data(), block)) all += piece.substr(0, size);
  EXPECT_EQ(stream.Read(piece.data(), block), 0u);  // the end stays the end
  return all;
}

// Text that compresses, but not to almost nothing, and fills several blocks of input.
std::string LongText() {
  std::string text;
  for (uint64_t i = 0; text.size() < 3000000; ++i)
    text += std::to_string(HashName(std::to_string(i))) + (i % 3 == 0 ? ",\n" : "word ");
  return text;
}

struct Format {
  const char* extension;
  std::function<std::string(const std::string&)> compress;
};
const Format kFormats[] = {{".gz", Gzip}, {".zst", Zstd}};

TEST(TextStreamTest, ReadsPlainAndCompressedFiles) {
  const std::string text = "a,b\n1,2\n";
  EXPECT_EQ(ReadInBlocks(Write("", text), 3), text);
  for (const auto& [extension, compress] : kFormats) {
    for (const std::string& part : {text, std::string(), LongText()}) {
      for (const size_t block : {size_t{1} << 20, size_t{1000}, size_t{7}}) {
        if (part.size() > 1000 && block == 7) continue;
        EXPECT_EQ(ReadInBlocks(Write(extension, compress(part)), block), part) << extension;
        // Several members or frames, one of them empty, as `cat a.gz b.gz` makes them.
        EXPECT_EQ(
            ReadInBlocks(Write(extension, compress(part) + compress("") + compress(text)), block),
            part + text)
            << extension;
      }
    }
  }
  EXPECT_EQ(TextStream(Write(".GZ", Gzip(text))).ReadAll(), text);
  EXPECT_EQ(TextStream(Write(".zst", Zstd(LongText()))).ReadAll(), LongText());
}

// As gzip and Python do.
TEST(TextStreamTest, IgnoresZerosBehindAMember) {
  const std::string text = "a,b\n1,2\n", more = "3,4\n";
  for (const size_t size : {1, 511, 400000}) {
    const std::string zeros(size, '\0');
    for (const size_t block : {size_t{1} << 20, size_t{3}}) {
      EXPECT_EQ(ReadInBlocks(Write(".gz", Gzip(text) + zeros), block), text) << size;
      EXPECT_EQ(ReadInBlocks(Write(".gz", Gzip(text) + zeros + Gzip(more) + zeros), block),
                text + more)
          << size;
    }
    EXPECT_THROW(TextStream(Write(".gz", Gzip(text) + zeros + "garbage")).ReadAll(), Error);
    EXPECT_THROW(TextStream(Write(".gz", zeros + Gzip(text))).ReadAll(), Error);
    EXPECT_THROW(TextStream(Write(".gz", zeros)).ReadAll(), Error);
  }
}

TEST(TextStreamTest, FindsEveryCut) {
  const std::string text = "a,b\n1,2\nthe end,of it\n";
  for (const auto& [extension, compress] : kFormats) {
    const std::string whole = compress(text);
    for (size_t size = 0; size < whole.size(); ++size) {
      const std::string path = Write(extension, whole.substr(0, size));
      try {
        TextStream(path).ReadAll();
        ADD_FAILURE() << extension << size;
      } catch (const Error& e) {
        EXPECT_EQ(e.message(), path + ": the file is cut short: its compressed data have no end");
        EXPECT_EQ(e.hint(), "copy or download it again");
      }
    }
    // A second part that is cut short.
    const std::string path = Write(extension, whole + whole.substr(0, whole.size() - 1));
    EXPECT_THROW(TextStream(path).ReadAll(), Error);
  }
}

TEST(TextStreamTest, FindsDamage) {
  const std::string text = LongText();
  for (const auto& [extension, compress] : kFormats) {
    const std::string whole = compress(text);
    int found = 0;
    for (size_t at = 20; at < whole.size(); at += whole.size() / 40) {
      std::string changed = whole;
      changed[at] ^= 0x10;
      const std::string path = Write(extension, changed);
      try {
        EXPECT_EQ(TextStream(path).ReadAll(), text)
            << extension << at;  // a byte that means nothing
      } catch (const Error& e) {
        ++found;
        EXPECT_TRUE(e.message().starts_with(path + ": the ")) << e.what();
        EXPECT_EQ(e.hint(), "copy or download it again");
      }
    }
    EXPECT_GT(found, 35) << extension;
    const std::string garbage = Write(extension, compress("a,b\n") + "garbage");
    EXPECT_THROW(TextStream(garbage).ReadAll(), Error);
  }
}

TEST(TextStreamTest, SaysWhenAFileHasAnotherFormat) {
  for (const auto& [extension, program] : {std::pair(".gz", "gzip"), std::pair(".zst", "zstd")}) {
    const std::string path = Write(extension, "a,b\n1,2\n");
    try {
      TextStream(path).ReadAll();
      ADD_FAILURE() << extension;
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), path + ": the file is not compressed by " + program);
      EXPECT_EQ(e.hint(),
                std::string("leave ") + extension + " out of its name if it is not compressed");
    }
  }
  EXPECT_THROW(TextStream("none.gz"), Error);
}

TEST(TextStreamTest, KnowsExtensions) {
  EXPECT_EQ(WithoutCompression("a/train.csv.gz"), "a/train.csv");
  EXPECT_EQ(WithoutCompression("train.JSON.ZST"), "train.JSON");
  EXPECT_EQ(WithoutCompression("train.csv"), "train.csv");
}

}  // namespace
}  // namespace lathe
