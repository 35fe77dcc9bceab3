#include "lathe/train/rows/data_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/rows/column_numbers.h"
#include "lathe/train/rows/read_table.h"
#include "lathe/train/rows/text_columns.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

class DataFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/files_" + std::to_string(getpid()) + "_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(root_);
  }
  ~DataFilesTest() override { fs::remove_all(root_); }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  void Write(const std::string& name, const std::string& text = "") const {
    WriteFileAtomically(Path(name), text);
  }
  std::string root_;
};

template <typename F>
std::string ErrorOf(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "no error";
}

TEST_F(DataFilesTest, NamesListsAndPatterns) {
  for (const char* name : {"b.csv", "B.csv", "a2.csv", "a10.csv", "c,d.csv", "e[1].csv", ".h.csv"})
    Write(name);
  const auto files = [&](const Strings& names) {
    Strings found;
    for (const std::string& path : DataFiles(names, "train_file"))
      found.push_back(path.substr(path.rfind('/') + 1));
    return found;
  };
  EXPECT_EQ(files({Path("b.csv"), Path("a2.csv")}), (Strings{"b.csv", "a2.csv"}));
  EXPECT_EQ(files({Path("b.csv") + "," + Path("a2.csv")}), (Strings{"b.csv", "a2.csv"}));
  EXPECT_EQ(files({Path("c,d.csv")}), Strings{"c,d.csv"});
  EXPECT_EQ(files({Path("c,d.csv") + "," + Path("b.csv")}), (Strings{"c,d.csv", "b.csv"}));
  EXPECT_EQ(files({Path("b.csv") + "," + Path("c,d.csv") + "," + Path("a?.csv")}),
            (Strings{"b.csv", "c,d.csv", "a2.csv"}));
  EXPECT_EQ(files({Path("c,x.csv")}), (Strings{"c", "x.csv"}));  // neither is there
  EXPECT_EQ(files({Path("e[1].csv")}), Strings{"e[1].csv"});
  EXPECT_EQ(files({Path("b.csv"), Path("b.csv")}), (Strings{"b.csv", "b.csv"}));
  EXPECT_EQ(files({Path("*.csv")}),
            (Strings{"B.csv", "a10.csv", "a2.csv", "b.csv", "c,d.csv", "e[1].csv"}));
  EXPECT_EQ(files({Path("b.csv") + "," + Path("a?.csv") + "," + Path("[B]*")}),
            (Strings{"b.csv", "a2.csv", "B.csv"}));
  EXPECT_EQ(files({"missing.csv"}), Strings{"missing.csv"});  // an error when it is read
  EXPECT_TRUE(files({}).empty());
  EXPECT_EQ(ErrorOf([&] { files({Path("x*.csv")}); }),
            "train_file " + Path("x*.csv") +
                ": no file matches this pattern|check the folder and the extension, such as "
                "data/*.csv");
  for (const char* empty : {"", "a.csv,", ",a.csv"}) {
    EXPECT_EQ(ErrorOf([&] { files({empty}); }),
              "train_file has an empty name of a file|write several files with one comma between "
              "them: a.csv,b.csv");
  }
}

TEST_F(DataFilesTest, NamesOfFilesAreShort) {
  EXPECT_EQ(NameOfFiles({"a.csv"}), "a.csv");
  EXPECT_EQ(NameOfFiles({"a.csv", "b.csv"}), "a.csv and 1 more file");
  EXPECT_EQ(NameOfFiles({"a.csv", "b.csv", "c.csv"}), "a.csv and 2 more files");
}

TEST_F(DataFilesTest, ColumnsMustBeTheSame) {
  const TextTable first = ParseTextTable("a.csv", "text,label\nx,1\n");
  CheckSameColumns(first, ParseTextTable("b.tsv", "label\ttext\n1\tx\n"), "train_file");
  EXPECT_EQ(
      ErrorOf([&] {
        CheckSameColumns(first, ParseTextTable("b.csv", "text,label,id\nx,1,2\n"), "train_file");
      }),
      "b.csv: its columns are text, label, id but those of a.csv are text, label|all files of "
      "train_file must have the same columns");
}

TEST_F(DataFilesTest, FilesInJsonNeedOnlyTheColumnsThatAreUsed) {
  const std::vector<TextTable> tables = {
      ParseTextTable("a.jsonl", "{\"text\": \"x\", \"label\": 1, \"meta\": {}}\n"),
      ParseTextTable("b.jsonl", "{\"text\": \"x\", \"label\": 1}\n"),
      ParseTextTable("c.jsonl", "{\"label\": 1}\n")};
  for (const TextTable& table : tables) CheckSameColumns(tables[0], table, "train_file");
  EXPECT_EQ(ChooseColumns({tables[0], tables[1]}, {}).first, "text");
  EXPECT_TRUE(ErrorOf([&] {
                ChooseColumns(tables, {});
              }).starts_with("c.jsonl: no column \"text\"; it has: label|"));
}

TEST_F(DataFilesTest, ArraysInAnyFileAreNoTexts) {
  const std::vector<TextTable> tables = {ParseTextTable("a.jsonl", "{\"text\": \"x\"}\n"),
                                         ParseTextTable("b.jsonl", "{\"text\": [1]}\n")};
  EXPECT_EQ(
      ErrorOf([&] { ChooseColumns(tables, {}); }),
      "b.jsonl:1: the value of \"text\" is an array but must be a text|write it as one string "
      "or name another column");
}

TEST_F(DataFilesTest, ColumnsMayHaveNumbers) {
  Write("a.csv", "id,first,2,label\n1,x,y,0\n");
  const DataSplit split = {.option = "train_file", .files = {Path("a.csv")}};
  const auto with_names = [&](const Strings& texts, const std::string& label) {
    FinetuneArguments options;
    options.text_columns = texts;
    options.label_column = label;
    options = WithColumnNames(options, split);
    options.text_columns.push_back(options.label_column);
    return options.text_columns;
  };
  EXPECT_EQ(with_names({"3", "first"}, "4"), (Strings{"2", "first", "label"}));
  EXPECT_EQ(with_names({"2"}, "label"), (Strings{"2", "label"}));  // the column of this name
  EXPECT_EQ(with_names({"1", "other"}, "label"), (Strings{"id", "other", "label"}));
  EXPECT_EQ(ErrorOf([&] { with_names({"5"}, "label"); }),
            Path("a.csv") +
                ": there is no column 5; it has 4|columns of text_columns count from "
                "1; or give their names");
  EXPECT_EQ(ErrorOf([&] { with_names({"first"}, "0"); }),
            Path("a.csv") +
                ": there is no column 0; it has 4|columns of label_column count from "
                "1; or give their names");
  EXPECT_EQ(ErrorOf([&] {
              with_names({"1", "id"}, "label");
            }),
            Path("a.csv") +
                ": text_columns names \"id\" twice, by its name and by its number|name "
                "each column once");
}

TEST_F(DataFilesTest, ColumnsThatAreJoinedMayHaveNumbers) {
  Write("a.csv", "id,title,body,label\n1,x,y,0\n2,z,\"\",1\n");
  const DataSplit split = {.option = "train_file", .files = {Path("a.csv")}, .wanted = true};
  FinetuneArguments options;
  options.text_column_names = {"3", "title", "1"};
  options.text_column_delimiter = "\n";
  options = WithColumnNames(options, split);
  EXPECT_EQ(options.text_column_names, (Strings{"body", "title", "id"}));
  const std::vector<TextTable> tables = ReadTables(split, options);
  const TextColumns columns = ChooseColumns(tables, options);
  EXPECT_EQ(columns.first, "body + title + id");
  EXPECT_EQ(columns.second, "");
  EXPECT_EQ(tables[0].column(columns.first), (Strings{"y\nx\n1", "\nz\n2"}));
  ForEachBlock(split, options, [&](TextTable& rows, size_t /*file*/) {
    EXPECT_EQ(rows.columns, tables[0].columns);
    EXPECT_EQ(rows.names, tables[0].names);
  });
  EXPECT_EQ(ErrorOf([&] {
              options.text_column_names = {"id", "1"};
              WithColumnNames(options, split);
            }),
            Path("a.csv") +
                ": text_column_names names \"id\" twice, by its name and by its number|name "
                "each column once");
}

TEST_F(DataFilesTest, ALoneColumnNeedsNoJoining) {
  Write("a.csv", "text,label\nx,0\ny,1\n");
  FinetuneArguments options;
  options.text_column_names = {"text"};
  const std::vector<TextTable> tables =
      ReadTables({.option = "train_file", .files = {Path("a.csv")}, .wanted = true}, options);
  EXPECT_EQ(tables[0].names, (Strings{"text", "label"}));
  EXPECT_EQ(ChooseColumns(tables, options).first, "text");
}

TEST_F(DataFilesTest, ANoteTellsOfPairsThatNoOptionNames) {
  DataArguments options;
  EXPECT_EQ(
      NoteOnTextColumns({"text", "w"}, options),
      "the texts are pairs of \"text\" and \"w\", the first columns; if the model was trained "
      "on others, name them with text_columns");
  EXPECT_EQ(NoteOnTextColumns({"text", ""}, options), "");
  EXPECT_EQ(NoteOnTextColumns({"sentence1", "sentence2"}, options), "");
  options.text_columns = {"text", "w"};
  EXPECT_EQ(NoteOnTextColumns({"text", "w"}, options), "");
}

TEST_F(DataFilesTest, ColumnsOfTextsThatContradict) {
  const auto error_of = [](const Strings& pair, const Strings& joined,
                           const std::string& delimiter = " ") {
    DataArguments options;
    options.text_columns = pair;
    options.text_column_names = joined;
    options.text_column_delimiter = delimiter;
    return ErrorOf([&] { CheckTextColumns(options); });
  };
  EXPECT_EQ(error_of({"a", "b"}, {}), "no error");
  EXPECT_EQ(error_of({}, {"a", "b", "c"}), "no error");
  EXPECT_EQ(error_of({"a", "b", "c"}, {}),
            "text_columns takes one or two columns|pass text_column_names to join more columns "
            "to one text");
  EXPECT_EQ(error_of({}, {"a", "b", "a"}),
            "text_column_names names \"a\" twice|name each column once");
  EXPECT_EQ(error_of({"a"}, {"a"}),
            "text_column_names and text_columns contradict each other|leave one of them out");
  EXPECT_EQ(error_of({}, {"a", "b"}, "\xff"),
            "text_column_delimiter is not UTF-8|pass text, or leave it out for a space");
}

}  // namespace
}  // namespace lathe
