#include "lathe/train/rows/source_rows.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

class SourceRowsTest : public testing::Test {
 protected:
  SourceRowsTest() : folder_(testing::TempDir() + "/source_rows_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~SourceRowsTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) const {
    WriteFileAtomically(folder_ + "/" + name, text);
    return folder_ + "/" + name;
  }
  // Returns "file:line text|text" of a sample.
  static std::string Row(const RowSource& source, int64_t sample) {
    const SourceRow row = ReadSourceRows(source, {sample}).at(sample);
    std::string out = std::to_string(row.file) + ":" + std::to_string(row.line) + " ";
    for (size_t i = 0; i < row.texts.size(); ++i) out += (i > 0 ? "|" : "") + row.texts[i];
    return out;
  }

  const std::string folder_;
};

TEST_F(SourceRowsTest, CountsThroughAllFilesAndFormats) {
  RowSource source{.columns = {"a", "b"}};
  source.split.files = {Write("1.csv", "a,b,label\n\"x\ny\",1,p\n\nz,2,q\n"),
                        Write("2.jsonl", "{\"b\": \"3\", \"label\": \"p\", \"a\": \"u\"}\n"),
                        Write("3.tsv", "label\ta\tb\np\tv\t4\n")};
  EXPECT_EQ(Row(source, 0), "0:2 x\ny|1");
  EXPECT_EQ(Row(source, 1), "0:5 z|2");
  EXPECT_EQ(Row(source, 2), "1:1 u|3");
  EXPECT_EQ(Row(source, 3), "2:2 v|4");
  EXPECT_EQ(ReadSourceRows(source, {3, 0, 1}).size(), 3u);
  try {
    ReadSourceRows(source, {2, 4});
    FAIL() << "there is no sample 4";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), source.split.files[0] +
                               " and 2 more files: there are only 4 rows of the data now; there "
                               "were more before");
  }
}

TEST_F(SourceRowsTest, CountsOnlyRowsThatAreUsed) {
  RowSource source{.columns = {"a", ""}};
  source.split.files = {Write("1.csv", "a,label\nx,p\nx,p\ny,p\n"),
                        Write("2.csv", "a,label\nx,p\nz,p\n")};
  source.split.drops_duplicates = true;
  EXPECT_EQ(Row(source, 0), "0:2 x");
  EXPECT_EQ(Row(source, 1), "0:4 y");
  EXPECT_EQ(Row(source, 2), "1:3 z");
  source.split.max_rows = 2;
  EXPECT_EQ(Row(source, 1), "0:4 y");
  EXPECT_THROW(ReadSourceRows(source, {2}), Error);
}

TEST_F(SourceRowsTest, FollowsTheRuleThatDividesTheFiles) {
  std::string text = "a,label\n";
  for (int i = 0; i < 40; ++i) text += "text " + std::to_string(i) + (i % 2 ? ",p\n" : ",q\n");
  RowSource source{.columns = {"a", ""}};
  source.split.files = {Write("1.csv", text)};
  source.split.rows = DataSplit::Rows::kValidating;
  const TextTable table = ReadTextTable(source.split.files[0]);
  ValidationRule rule(0.3);
  rule.Add(table, source.columns, "label");
  rule.Decide(LabelKind::kSingleLabel, "1.csv");
  source.rule = rule;
  const std::vector<bool> validates = rule.Validates(table, source.columns, "label");
  int64_t sample = 0;
  for (size_t row = 0; row < validates.size(); ++row) {
    if (!validates[row]) continue;
    EXPECT_EQ(Row(source, sample++),
              "0:" + std::to_string(table.lines[row]) + " " + table.columns[0][row]);
  }
  EXPECT_GT(sample, 4);
  EXPECT_LT(sample, 30);
  EXPECT_THROW(ReadSourceRows(source, {sample}), Error);
}

TEST_F(SourceRowsTest, ReadsNoFurtherThanItMust) {
  RowSource source{.columns = {"a", ""}};
  source.split.files = {Write("1.csv", "a,label\nx,p\n"), folder_ + "/none.csv"};
  EXPECT_EQ(Row(source, 0), "0:2 x");
  EXPECT_THROW(ReadSourceRows(source, {1}), Error);
  EXPECT_TRUE(ReadSourceRows({.split = {.files = {folder_ + "/none.csv"}}}, {}).empty());
}

TEST_F(SourceRowsTest, RefusesAPipeInsteadOfWaiting) {
  const std::string path = folder_ + "/pipe.csv";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  RowSource source{.columns = {"a", ""}};
  source.split.files = {path};
  try {
    ReadSourceRows(source, {0});
    FAIL() << "a pipe was read";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), path + ": is no regular file, so it can't be read twice");
  }
}

}  // namespace
}  // namespace lathe
