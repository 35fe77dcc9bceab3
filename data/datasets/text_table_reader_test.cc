#include "lathe/data/datasets/text_table_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

// Returns all rows of a file as one table, read in blocks of so many bytes.
TextTable ReadInBlocks(const std::string& path, int64_t block_bytes, InvalidUtf8 invalid) {
  TextTableReader reader(path, invalid, block_bytes);
  TextTable all = reader.Next();
  for (TextTable rows = reader.Next(); rows.rows() > 0; rows = reader.Next()) {
    EXPECT_EQ(rows.names, all.names);
    EXPECT_EQ(rows.path, path);
    for (size_t c = 0; c < all.columns.size(); ++c)
      all.columns[c].insert(all.columns[c].end(), rows.columns[c].begin(), rows.columns[c].end());
    all.lines.insert(all.lines.end(), rows.lines.begin(), rows.lines.end());
    for (size_t c = 0; c < all.first_array_lines.size(); ++c) {
      if (all.first_array_lines[c] == 0) all.first_array_lines[c] = rows.first_array_lines[c];
    }
  }
  return all;
}

std::string Write(const std::string& extension, const std::string& text) {
  const std::string path =
      testing::TempDir() + "/table_" + std::to_string(getpid()) + "." + extension;
  WriteFileAtomically(path, text);
  return path;
}

TEST(TextTableReaderTest, GivesTheRowsOfTheWholeFileForAnySizeOfBlocks) {
  const std::pair<std::string, std::string> files[] = {
      {"csv",
       "\xEF\xBB\xBF"
       "a,b\n1,x\n\n\"two\nlines, \"\"quoted\"\"\",y\r\n\r\n3,\"\"\n\"\",z"},
      {"csv", "a\n\"\n\n\n\"\nlast\r\n"},
      {"csv", "a,b\r\nlone \" quote,\"x\"\r\n,\r\n"},
      {"tsv", "a\tb\nx\t\n\n\"lone\ty\r\n"},
      {"jsonl", "{\"a\":1,\"b\":\"x\"}\n\n{\"b\":[1],\"a\":\"\xC3\xA9\"}\r\n{\"a\":0,\"b\":[]}"},
      {"csv", "a\nbroken \xC3(\n\xE2\x82\nok \xC3\xA9\n"}};
  for (const auto& [extension, text] : files) {
    const std::string path = Write(extension, text);
    const TextTable expected = ReadTextTable(path, InvalidUtf8::kReplace);
    for (int64_t block = 1; block <= std::ssize(text) + 1; ++block) {
      const TextTable table = ReadInBlocks(path, block, InvalidUtf8::kReplace);
      ASSERT_EQ(table.names, expected.names) << text << block;
      ASSERT_EQ(table.columns, expected.columns) << text << block;
      ASSERT_EQ(table.lines, expected.lines) << text << block;
      ASSERT_EQ(table.first_array_lines, expected.first_array_lines) << text << block;
    }
  }
}

TEST(TextTableReaderTest, GivesTheErrorsOfTheWholeFile) {
  const std::pair<std::string, std::string> files[] = {{"csv", ""},
                                                       {"csv", "a,b\n"},
                                                       {"csv", "a,b\n1,2\n\n1,2,3\n"},
                                                       {"csv", "a,b\n1,2\n\"x\ny\n"},
                                                       {"csv", "a,b\n1,2\n\"x\"y,1\n"},
                                                       {"csv", "a,a\n1,2\n"},
                                                       {"csv", "a\nx\n\xFF\n"},
                                                       {"tsv", "a\tb\n1\n"},
                                                       {"jsonl", "{\"a\":1}\n{\"a\":2,\"b\":3}\n"},
                                                       {"jsonl", "{}\n{\"a\":2}\n"},
                                                       {"jsonl", "{\"a\":1}\n{\"a\":"}};
  const auto error_of = [](const auto& read) -> std::string {
    try {
      read();
      return "no error";
    } catch (const Error& e) {
      return e.what();
    }
  };
  for (const auto& [extension, text] : files) {
    const std::string path = Write(extension, text);
    const std::string expected = error_of([&] { ReadTextTable(path); });
    EXPECT_NE(expected, "no error") << text;
    for (int64_t block = 1; block <= std::ssize(text) + 1; ++block) {
      EXPECT_EQ(error_of([&] { ReadInBlocks(path, block, InvalidUtf8::kError); }), expected)
          << text << block;
    }
  }
  EXPECT_EQ(error_of([] { TextTableReader reader("none.csv"); }),
            error_of([] { ReadTextTable("none.csv"); }));
  EXPECT_EQ(error_of([] { TextTableReader reader("none.txt"); }),
            error_of([] { ReadTextTable("none.txt"); }));
}

}  // namespace
}  // namespace lathe
