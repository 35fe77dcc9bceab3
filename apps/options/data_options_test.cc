#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lathe/apps/options/options_testing.h"

namespace lathe {
namespace {

TEST(DataOptionsTest, ASplitExcludesAFile) {
  EXPECT_EQ(Parse({"--validation_split", "0.2", "--do_eval"}).validation_split, 0.2);
  EXPECT_EQ(Parse({"--validation_split", "0", "--validation_file", "v.csv"}).validation_split, 0);
  EXPECT_EQ(
      ErrorOf({"--validation_split", "1"}),
      "--validation_split must be above 0 and below 1|0.1 keeps about a tenth of the training "
      "rows for validation");
  EXPECT_EQ(ErrorOf({"--validation_split", "0.1", "--validation_file", "v.csv"}),
            "--validation_split and --validation_file exclude each other|leave one of them out");
  EXPECT_EQ(ErrorOf({"--validation_split", "0.1", "--do_train=false", "--do_eval"}),
            "--validation_split needs --do_train|name the data to evaluate with --validation_file");
}

TEST(DataOptionsTest, ColumnsThatNoOptionNamesAreOpenWithoutATraining) {
  const auto open = [](const Args& more) {
    Args args = {"--model_name_or_path", "m",     "--validation_file", "v.csv",
                 "--test_file",          "t.csv", "--output_dir",      "o"};
    args.insert(args.end(), more.begin(), more.end());
    const OpenColumns columns = ParseOptions(args).open_columns;
    return std::string(columns.texts ? "texts " : "") + (columns.delimiter ? "delimiter " : "") +
           (columns.label ? "label" : "");
  };
  EXPECT_EQ(open({"--do_eval"}), "texts delimiter label");
  EXPECT_EQ(open({"--do_eval", "--do_predict"}), "texts delimiter label");
  EXPECT_EQ(open({"--do_predict"}), "texts delimiter ");
  EXPECT_EQ(open({"--do_eval", "--text_columns", "a"}), "delimiter label");
  EXPECT_EQ(open({"--do_eval", "--text_column_name", "a"}), "delimiter label");
  EXPECT_EQ(open({"--do_eval", "--text_column_delimiter", " "}), "texts label");
  EXPECT_EQ(open({"--do_eval", "--label_column", "label"}), "texts delimiter ");
  EXPECT_EQ(open({"--do_eval", "--label_column_name", "label"}), "texts delimiter ");
  EXPECT_EQ(open({"--do_eval", "--task_name", "sst2"}), "");
  EXPECT_EQ(open({"--do_eval", "--do_train", "--train_file", "t.csv"}), "");
  // A file of arguments names columns, too.
  const std::string path = testing::TempDir() + "columns.json";
  std::ofstream(path) << R"({"label_column": "label", "text_columns": ["a", "b"]})";
  EXPECT_EQ(open({"--do_eval", "--json_config", path}), "delimiter ");
}

TEST(DataOptionsTest, TheLengthMayFollowFromTheData) {
  EXPECT_EQ(Parse({}).max_seq_length, 128);
  EXPECT_EQ(Parse({"--max_seq_length", "auto"}).max_seq_length, 0);
  EXPECT_EQ(ErrorOf({"--max_seq_length", "0"}),
            "--max_seq_length must be at least 1 but is \"0\"|");
  EXPECT_EQ(ErrorOf({"--max_seq_length", "all"}),
            "--max_seq_length must be a whole number or auto but is \"all\"|");
}

TEST(DataOptionsTest, DataFilesAreListsThatKeepTheirCommas) {
  const auto files = [](const Args& more) {
    Args args = {"--model_name_or_path", "m", "--do_predict", "--output_dir", "o", "--test_file"};
    args.insert(args.end(), more.begin(), more.end());
    return ParseOptions(args).options.test_file;
  };
  EXPECT_EQ(files({"a.csv"}), Args{"a.csv"});
  EXPECT_EQ(files({"a.csv,b.csv"}), Args{"a.csv,b.csv"});
  EXPECT_EQ(files({"a.csv", "b.csv", "--seed", "1"}), (Args{"a.csv", "b.csv"}));
  EXPECT_EQ(files({"a.csv", "--test_file=b.csv"}), Args{"b.csv"});
  EXPECT_EQ(ParseOptions({"--model_name_or_path", "m", "--do_predict", "--output_dir", "o",
                          "--test_file", "/bin/../bin/sh,none.csv,/bin/sh"})
                .files.back()
                .second,
            std::filesystem::canonical("/bin/sh").string() + ",none.csv," +
                std::filesystem::canonical("/bin/sh").string());
}

TEST(DataOptionsTest, RanksMayKeepTheirDataInDifferentPlaces) {
  EXPECT_EQ(Parse({}).dataset_cache, "auto");
  EXPECT_FALSE(Parse({}).overwrite_cache);
  const ParsedOptions parsed =
      ParseOptions({"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
                    "--output_dir", "o", "--dataset_cache", "d", "--overwrite_cache"});
  EXPECT_EQ(parsed.options.dataset_cache, "d");
  EXPECT_TRUE(parsed.options.overwrite_cache);
  for (const auto& [name, value] : parsed.shared)
    EXPECT_EQ(name.find("cache"), std::string::npos) << name;
  EXPECT_EQ(ErrorOf({"--dataset_cache", ""}),
            "--dataset_cache must not be empty|name a folder, or pass none to keep the data in "
            "memory");
}

}  // namespace
}  // namespace lathe
