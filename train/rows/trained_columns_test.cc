#include "lathe/train/rows/trained_columns.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

using Strings = std::vector<std::string>;

TextTable Table(const Strings& names) {
  TextTable table;
  table.path = "dev.csv";
  table.names = names;
  table.columns.resize(names.size());
  return table;
}

TrainedColumns Reviews() { return {.texts = {"review"}, .label = "stars"}; }

// What TakeTrainedColumns makes of options that name nothing.
struct Taken {
  DataArguments options;
  std::string note;
};
Taken Take(const TrainedColumns& trained, const Strings& names, const OpenColumns& open = {}) {
  Taken taken;
  taken.note = TakeTrainedColumns(trained, Table(names), open, &taken.options);
  return taken;
}

std::string ErrorOf(const std::string& text) {
  try {
    ParseTrainedColumns(text, "data_columns.json");
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(TrainedColumnsTest, ColumnsOfARun) {
  DataArguments given;
  EXPECT_EQ(ColumnsOfRun(given, given, {.first = "a", .second = "b"}),
            (TrainedColumns{.texts = {"a", "b"}, .label = "label"}));
  given.text_columns = {"3", "2024"};
  given.label_column = "1";
  DataArguments named = given;
  named.text_columns = {"review", "2024"};  // the second is the name of a column
  named.label_column = "stars";
  EXPECT_EQ(ColumnsOfRun(given, named, {.first = "review", .second = "2024"}),
            (TrainedColumns{.texts = {"review", "2024"},
                            .label = "stars",
                            .numbers = {{"review", 3}, {"stars", 1}}}));
}

TEST(TrainedColumnsTest, ColumnsOfARunThatJoins) {
  DataArguments given;
  given.text_column_names = {"title", "4"};
  given.text_column_delimiter = " | ";
  DataArguments named = given;
  named.text_column_names = {"title", "body"};
  EXPECT_EQ(ColumnsOfRun(given, named, {.first = "title + body", .second = ""}),
            (TrainedColumns{.texts = {"title", "body"},
                            .joined = true,
                            .delimiter = " | ",
                            .label = "label",
                            .numbers = {{"body", 4}}}));
  // A lone column is as one of --text_columns.
  given.text_column_names = named.text_column_names = {"title"};
  EXPECT_EQ(ColumnsOfRun(given, named, {.first = "title", .second = ""}),
            (TrainedColumns{.texts = {"title"}, .label = "label"}));
}

TEST(TrainedColumnsTest, AFileHasThemAll) {
  const std::vector<TrainedColumns> all = {
      Reviews(),
      {.texts = {"a\n\"", "ä"}, .label = "", .numbers = {{"ä", 2}, {"", 1}}},
      {.texts = {"b", "a", "c"}, .joined = true, .delimiter = "\t", .label = "x"}};
  for (const TrainedColumns& columns : all)
    EXPECT_EQ(ParseTrainedColumns(FormatTrainedColumns(columns), "file"), columns);
  EXPECT_EQ(FormatTrainedColumns(Reviews()),
            "{\n  \"text_columns\": [\n    \"review\"\n  ],\n  \"label_column\": \"stars\"\n}\n");

  const std::string folder = testing::TempDir() + "trained_columns";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder + "/data_columns.json");
  EXPECT_EQ(ReadTrainedColumns(folder), std::nullopt);
  WriteFileAtomically(folder + "/" + kTrainedColumns, FormatTrainedColumns(Reviews()));
  EXPECT_EQ(ReadTrainedColumns(folder), Reviews());
}

TEST(TrainedColumnsTest, ADamagedFileIsRefused) {
  EXPECT_EQ(ErrorOf(R"({"text_columns": ["a"], "label_column": "b", "later": [1]})"), "");
  const std::string where = "data_columns.json: ";
  for (const std::string text : {"", "[1]", "{\"text_columns\": [\"a\"]", "\"a\""})
    EXPECT_EQ(ErrorOf(text), where + "must be a JSON object of columns");
  const std::string either = where + "must have either \"text_columns\" or \"text_column_names\"";
  EXPECT_EQ(ErrorOf(R"({"label_column": "b"})"), either);
  EXPECT_EQ(ErrorOf(R"({"text_columns": ["a"], "text_column_names": ["a", "b"]})"), either);
  for (const std::string list : {"[]", "[\"a\", \"b\", \"c\"]", "[1]", "\"a\"", "null"}) {
    EXPECT_EQ(ErrorOf("{\"text_columns\": " + list + "}"),
              where + "\"text_columns\" must be a list of 1 or 2 names");
  }
  EXPECT_EQ(ErrorOf(R"({"text_column_names": ["a"]})"),
            where + "\"text_column_names\" must be a list of 2 or more names");
  EXPECT_EQ(ErrorOf(R"({"text_column_names": ["a", "b"], "label_column": "c"})"),
            where + "\"text_column_delimiter\" must be a text");
  EXPECT_EQ(ErrorOf(R"({"text_columns": ["a"], "label_column": 2})"),
            where + "\"label_column\" must be a text");
  const std::string whole = R"({"text_columns": ["a"], "label_column": "b", "column_numbers": )";
  EXPECT_EQ(ErrorOf(whole + "[1]}"),
            where + "\"column_numbers\" must be an object of names and numbers");
  for (const std::string number : {"0", "-1", "1.5", "\"1\"", "null"}) {
    EXPECT_EQ(ErrorOf(whole + "{\"a\": " + number + "}}"),
              where + "\"column_numbers\" must have whole numbers from 1");
  }
}

TEST(TrainedColumnsTest, ColumnsAreFoundByName) {
  const Taken taken = Take(Reviews(), {"title", "stars", "review"});
  EXPECT_EQ(taken.options.text_columns, Strings{"review"});
  EXPECT_EQ(taken.options.label_column, "stars");
  EXPECT_EQ(taken.note,
            "the texts are in \"review\", and the labels are in \"stars\", as in the training");
  const Taken pair = Take({.texts = {"b", "a"}, .label = "label"}, {"a", "b", "label"});
  EXPECT_EQ(pair.options.text_columns, (Strings{"b", "a"}));
  EXPECT_EQ(pair.note, "the texts are pairs of \"b\" and \"a\", as in the training");
}

TEST(TrainedColumnsTest, UsualTextsHaveNoNote) {
  const Taken one = Take({.texts = {"sentence"}, .label = "label"}, {"sentence", "label"});
  EXPECT_EQ(one.options.text_columns, Strings{"sentence"});
  EXPECT_EQ(one.note, "");
  const Taken pair = Take({.texts = {"a", "b"}, .label = "label"}, {"a", "label", "b", "c"});
  EXPECT_EQ(pair.options.text_columns, (Strings{"a", "b"}));
  EXPECT_EQ(pair.note, "");
  EXPECT_EQ(Take(Reviews(), {"stars", "review"}).note,
            "the labels are in \"stars\", as in the training");
  // Without the training, the texts would be pairs, or in a column that holds no texts.
  EXPECT_EQ(Take({.texts = {"a"}, .label = "label"}, {"a", "label", "b"}).note,
            "the texts are in \"a\", as in the training");
  EXPECT_EQ(Take({.texts = {"label"}, .label = "label"}, {"label"}, {.label = false}).note,
            "the texts are in \"label\", as in the training");
}

TEST(TrainedColumnsTest, JoinedColumnsAreFoundByName) {
  const TrainedColumns joined{
      .texts = {"c", "a", "b"}, .joined = true, .delimiter = "|", .label = "label"};
  const Taken taken = Take(joined, {"a", "b", "c", "label"});
  EXPECT_EQ(taken.options.text_columns, Strings());
  EXPECT_EQ(taken.options.text_column_names, (Strings{"c", "a", "b"}));
  EXPECT_EQ(taken.options.text_column_delimiter, "|");
  EXPECT_EQ(taken.note, "the texts are \"c\", \"a\" and \"b\" joined, as in the training");
  EXPECT_EQ(Take(joined, {"a", "b", "c"}, {.delimiter = false, .label = false})
                .options.text_column_delimiter,
            " ");
}

TEST(TrainedColumnsTest, OnlyOpenColumnsAreTaken) {
  DataArguments options;
  options.text_columns = {"title"};
  EXPECT_EQ(TakeTrainedColumns(Reviews(), Table({"title", "stars", "review"}), {.texts = false},
                               &options),
            "the labels are in \"stars\", as in the training");
  EXPECT_EQ(options.text_columns, Strings{"title"});
  const Taken no_label = Take(Reviews(), {"title", "review"}, {.label = false});
  EXPECT_EQ(no_label.options.label_column, "label");
  EXPECT_EQ(no_label.note, "the texts are in \"review\", as in the training");
}

// A file without a row of names has a text and a label where names would be.
TEST(TrainedColumnsTest, ColumnsAreFoundByNumber) {
  const TrainedColumns trained{.texts = {"a good film"},
                               .label = "positive",
                               .numbers = {{"a good film", 1}, {"positive", 2}}};
  const Taken taken = Take(trained, {"a dull plot", "negative"});
  EXPECT_EQ(taken.options.text_columns, Strings{"a dull plot"});
  EXPECT_EQ(taken.options.label_column, "negative");
  EXPECT_EQ(taken.note,
            "the texts are in column 1, and the labels are in column 2, as in the training");
  const Taken same_word = Take(trained, {"positive", "negative"});
  EXPECT_EQ(same_word.options.text_columns, Strings{"positive"});
  EXPECT_EQ(same_word.options.label_column, "negative");
  EXPECT_EQ(Take(trained, {"a dull plot"}, {.label = false}).options.text_columns,
            Strings{"a dull plot"});
  // A name that is there wins.
  EXPECT_EQ(Take(trained, {"id", "a good film"}, {.label = false}).options.text_columns,
            Strings{"a good film"});
}

TEST(TrainedColumnsTest, AFileThatLacksThemIsReadAsBefore) {
  const Taken texts = Take(Reviews(), {"title", "stars", "body"});
  EXPECT_EQ(texts.options.text_columns, (Strings{"title", "body"}));
  EXPECT_EQ(texts.options.label_column, "stars");
  EXPECT_EQ(texts.note,
            "the labels are in \"stars\", as in the training; dev.csv lacks \"review\" of the "
            "training data, so the texts are pairs of \"title\" and \"body\"; choose others with "
            "text_columns");
  const Taken label = Take(Reviews(), {"review", "label"});
  EXPECT_EQ(label.options.text_columns, Strings{"review"});
  EXPECT_EQ(label.options.label_column, "label");
  EXPECT_EQ(label.note,
            "dev.csv lacks \"stars\" of the training data, so the labels are in \"label\"; choose "
            "others with label_column");
  const Taken both = Take(Reviews(), {"text\n", "label"});
  EXPECT_EQ(both.options.text_columns, Strings{"text\n"});
  EXPECT_EQ(both.note,
            "dev.csv lacks \"review\" and \"stars\" of the training data, so the texts are in "
            "\"text \", and the labels are in \"label\"; choose others with text_columns and "
            "label_column");
  // A number that is too large.
  const TrainedColumns numbered{.texts = {"a"}, .label = "label", .numbers = {{"a", 3}}};
  EXPECT_EQ(Take(numbered, {"x", "label"}).note,
            "dev.csv lacks column 3 of the training data, so the texts are in \"x\"; choose others "
            "with text_columns");
  EXPECT_THROW(Take(Reviews(), {"id"}), Error) << "no text at all";
}

TEST(TrainedColumnsTest, TheColumnOfWeightsIsNoText) {
  DataArguments options;
  options.sample_weight_column = "weight";
  TakeTrainedColumns(Reviews(), Table({"weight", "text", "label"}), {}, &options);
  EXPECT_EQ(options.text_columns, Strings{"text"});
}

// Gives each test a model's folder and a file of data.
class ColumnsOfModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    WriteFileAtomically(folder_ + "/dev.csv", "title,stars,review\nbad,5,a good film\n");
    Remember(FormatTrainedColumns(Reviews()));
  }
  void Remember(const std::string& text) const {
    WriteFileAtomically(folder_ + "/" + kTrainedColumns, text);
  }
  std::string Take(const OpenColumns& open, const std::string& file = "dev.csv") {
    return TakeColumnsOfModel(
        folder_, {.option = "validation_file", .files = {folder_ + "/" + file}}, open, &options_);
  }

  const std::string folder_ = testing::TempDir() + "columns_of_model";
  FinetuneArguments options_;
};

TEST_F(ColumnsOfModelTest, AreSoughtInTheFirstFile) {
  EXPECT_EQ(Take({}),
            "the texts are in \"review\", and the labels are in \"stars\", as in the training");
  EXPECT_EQ(options_.text_columns, Strings{"review"});
  EXPECT_EQ(options_.label_column, "stars");
}

TEST_F(ColumnsOfModelTest, AreNotReadIfNoneIsOpen) {
  Remember("{");
  EXPECT_EQ(Take(OpenColumns::None()), "");
  EXPECT_EQ(Take(OpenColumns::None(), "none.csv"), "");
  EXPECT_THROW(Take({}), Error);
}

TEST_F(ColumnsOfModelTest, AreNotNeeded) {
  std::filesystem::remove(folder_ + "/" + kTrainedColumns);
  EXPECT_EQ(Take({}), "");
  EXPECT_EQ(Take({}, "none.csv"), "");  // whoever reads it will say that there is none
  const DataSplit split{.option = "validation_file", .files = {folder_ + "/dev.csv"}};
  EXPECT_EQ(TakeColumnsOfModel("", split, {}, &options_), "");  // a model of fresh weights
  EXPECT_EQ(options_.text_columns, Strings());
  EXPECT_EQ(options_.label_column, "label");
}

TEST_F(ColumnsOfModelTest, AreNotSoughtInAPipe) {
  const std::string pipe = folder_ + "/pipe.csv";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Take({}, "pipe.csv"),
            pipe + " can be read only once, so the columns of the training are not sought in it");
  EXPECT_EQ(options_.text_columns, Strings());
}

}  // namespace
}  // namespace lathe
