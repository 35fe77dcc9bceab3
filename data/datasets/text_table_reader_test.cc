#include "lathe/data/datasets/text_table_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/data/table_files/compress_testing.h"

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
    all.elements.insert(all.elements.end(), rows.elements.begin(), rows.elements.end());
    all.unusable.insert(rows.unusable.begin(), rows.unusable.end());
    all.without_text = rows.without_text;  // they may have a text by now
    for (size_t c = 0; c < all.first_array_lines.size(); ++c) {
      if (all.first_array_lines[c] == 0) all.first_array_lines[c] = rows.first_array_lines[c];
    }
  }
  return all;
}

// Returns what can't be used and why, a line for each column.
std::string Problems(const TextTable& table) {
  std::string lines;
  for (const auto& [name, value] : table.unusable) {
    lines += NameOfRow(name, value.line, value.element) + ": " + value.problem +
             (table.without_text.contains(name) ? ", and has no texts\n" : "\n");
  }
  return lines;
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
      {"csv", "a\nbroken \xC3(\n\xE2\x82\nok \xC3\xA9\n"},
      {"json", "{\"a\":1}\n{\"a\":2}\n"},
      {"jsonl", "{\"a\":1,\"b\":{}}\n{\"a\":2,\"c\":3}\n{}\n{\"a\":null,\"b\":null,\"c\":4}\n"},
      {"jsonl",
       "{\"a\":null,\"b\":null}\n{\"a\":[1],\"c\":null}\n{\"a\":\"\",\"b\":0,\"c\":\"x\"}\n"},
      {"json", "[{\"a\":1},\n{\"b\":2}, {\"b\":{\"c\":[]},\"a\":{}}]"},
      {"json", "[{\"a\":1,\"b\":\"x\"},{\"b\":[1],\"a\":\"\xC3\xA9\"}]"},
      {"json",
       "\xEF\xBB\xBF\n \r\n[\n  {\n    \"a\": \"]},{\\\"\",\n    \"b\": [\"{\"]\n  },\n\n"
       "  {\"a\": \"\\\\\", \"b\": []} ]\n\n"},
      {"json", "[{\"a\":\"broken \xC3(\xE2\x82\"}\n,{\"a\":\"\xE2\x82\xAC\xE2\x82\xAC\"}]"}};
  for (const auto& [extension, text] : files) {
    const std::string path = Write(extension, text);
    const TextTable expected = ReadTextTable(path, InvalidUtf8::kReplace);
    for (int64_t block = 1; block <= std::ssize(text) + 1; ++block) {
      const TextTable table = ReadInBlocks(path, block, InvalidUtf8::kReplace);
      ASSERT_EQ(table.names, expected.names) << text << block;
      ASSERT_EQ(table.columns, expected.columns) << text << block;
      ASSERT_EQ(table.lines, expected.lines) << text << block;
      ASSERT_EQ(table.elements, expected.elements) << text << block;
      ASSERT_EQ(table.first_array_lines, expected.first_array_lines) << text << block;
      ASSERT_EQ(Problems(table), Problems(expected)) << text << block;
      ASSERT_EQ(table.without_text, expected.without_text) << text << block;
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
                                                       {"jsonl", "{}\n{\"a\":2}\n"},
                                                       {"jsonl", "{\"a\":1}\n{\"a\":"},
                                                       {"jsonl", "[{\"a\":1}]"},
                                                       {"json", "[]"},
                                                       {"json", "["},
                                                       {"json", "[1]"},
                                                       {"json", "[{\"a\":1},]"},
                                                       {"json", "[{\"a\":1}\n{\"a\":2}]"},
                                                       {"json", "[{\"a\":1}"},
                                                       {"json", "[{\"a\":\"x\n"},
                                                       {"json", "[{\"a\":1}]\n\n{\"a\":1}"},
                                                       {"json", "[{\"a\":1},\n{\"a\":\n\"\xFF\"}]"},
                                                       {"json", "[{\"a\":1},\n{\"a\":\nx}]"}};
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

TEST(TextTableReaderTest, ReadsCompressedFiles) {
  const std::string csv = "a,b\n1,x\n\"two\nlines\",y\n", json = "[{\"a\":1},\n{\"a\":2}]";
  const std::pair<std::string, std::string> files[] = {{"csv.gz", Gzip(csv)},
                                                       {"CSV.ZST", Zstd(csv)},
                                                       {"tsv.gz", Gzip("a\tb\n1\tx\n")},
                                                       {"jsonl.zst", Zstd("{\"a\":1}\n{\"a\":2}")},
                                                       {"json.gz", Gzip(json)}};
  for (const auto& [extension, bytes] : files) {
    const std::string path = Write(extension, bytes);
    const TextTable expected = ReadTextTable(path);
    EXPECT_EQ(expected.path, path);
    EXPECT_GE(expected.rows(), 1);
    for (const int64_t block : {1, 3, 1000}) {
      const TextTable table = ReadInBlocks(path, block, InvalidUtf8::kError);
      EXPECT_EQ(table.columns, expected.columns) << extension;
      EXPECT_EQ(table.lines, expected.lines) << extension;
    }
  }
  EXPECT_EQ(TableFormat("a.b/train.JSONL.GZ"), ".jsonl");
  EXPECT_EQ(TableFormat("train.csv"), ".csv");
  const std::string cut = Write("csv.gz", Gzip(csv).substr(0, 30));
  for (const auto& read :
       {std::function<void()>([&] { ReadTextTable(cut); }),
        std::function<void()>([&] { ReadInBlocks(cut, 5, InvalidUtf8::kError); })}) {
    try {
      read();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), cut + ": the file is cut short: its compressed data have no end");
    }
  }
}

}  // namespace
}  // namespace lathe
