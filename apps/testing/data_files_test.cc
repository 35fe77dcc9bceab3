// Tests data as they come: several files and patterns, compressed files, and arrays in JSON.
#include <filesystem>
#include <sstream>

#include "lathe/apps/testing/dataset_cache_testing.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/table_files/compress_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

class DataFilesTest : public DatasetCacheTest {
 protected:
  // Writes rows [begin, end) of a file as a file of its own.
  void WritePart(const std::string& name, const std::string& whole, size_t begin, size_t end) {
    std::istringstream lines(Read(whole));
    std::string text, line;
    for (size_t row = 0; std::getline(lines, line); ++row) {
      if (row == 0 || (row > begin && row <= end)) text += line + "\n";
    }
    Write(name, text);
  }
  // Runs 30 steps with evaluation and prediction, in memory and with the cache, and expects the
  // results of the run in the folder `expected`.
  void ExpectResultsOf(const std::string& expected, const Args& more) {
    Args args = {"--do_eval", "--do_predict"};
    args.insert(args.end(), more.begin(), more.end());
    for (const std::string& cache : {std::string("none"), Path("cache")}) {
      for (int run = 0; run < (cache == "none" ? 1 : 2); ++run) {
        fs::remove_all(Path("out"));
        const RunResult result = Run("out", cache, args);
        ASSERT_EQ(result.exit_code, 0) << result.err;
        if (cache != "none")
          Expect(result, run == 0 ? MadeNote("training") : FoundNote("training"));
        ExpectSameResults("out", expected);
      }
    }
    fs::remove_all(Path("cache"));
  }
};

TEST_F(DataFilesTest, SeveralFilesAreOneAfterTheOther) {
  ASSERT_EQ(Run("whole", "none", {"--do_eval", "--do_predict"}).exit_code, 0);
  fs::create_directories(Path("parts"));
  WritePart("parts/a.csv", "train.csv", 0, 40);
  WritePart("parts/b.csv", "train.csv", 40, 41);
  WritePart("parts/c.csv", "train.csv", 41, 1000);
  WritePart("dev,1.csv", "dev.csv", 0, 7);  // a comma in the name
  WritePart("dev2.csv", "dev.csv", 7, 1000);
  WritePart("test1.csv", "test.csv", 0, 19);
  WritePart("test2.csv", "test.csv", 19, 1000);
  const Args others = {"--validation_file", Path("dev,1.csv"), Path("dev2.csv"), "--test_file",
                       Path("test1.csv") + "," + Path("test2.csv")};
  for (const Args& train :
       {Args{Path("parts/*.csv")}, Args{Path("parts/a.csv"), Path("parts/[bc].csv")},
        Args{Path("parts/a.csv") + "," + Path("parts/b.csv") + "," + Path("parts/c.csv")}}) {
    Args args = others;
    args.push_back("--train_file");
    args.insert(args.end(), train.begin(), train.end());
    ExpectResultsOf("whole", args);
  }
  const RunResult run = Run("summary", "none", {"--train_file", Path("parts/*.csv")});
  EXPECT_TRUE(Contains(run.out, "(" + Path("parts/a.csv") + " and 2 more files)")) << run.out;
  EXPECT_TRUE(Contains(Read("summary/README.md"), " on `a.csv and 2 more files`.\n"));
}

// The number of rows to use counts over all files, and columns may have any order.
TEST_F(DataFilesTest, SamplesAndColumnsCountOverAllFiles) {
  WritePart("a.csv", "train.csv", 0, 40);
  std::istringstream lines(Read("train.csv"));
  std::string text, line;
  for (size_t row = 0; std::getline(lines, line); ++row) {
    const size_t comma = line.rfind(',');
    if (row == 0 || row > 40) text += line.substr(comma + 1) + "," + line.substr(0, comma) + "\n";
  }
  Write("b.csv", text);
  const Args both = {"--train_file", Path("a.csv"), Path("b.csv")};
  for (const char* samples : {"39", "40", "41", "90"}) {
    fs::remove_all(Path("whole"));
    ASSERT_EQ(Run("whole", "none", {"--max_train_samples", samples, "--do_eval", "--do_predict"})
                  .exit_code,
              0);
    Args args = {"--max_train_samples", samples};
    args.insert(args.end(), both.begin(), both.end());
    ExpectResultsOf("whole", args);
  }
}

TEST_F(DataFilesTest, CompressedFilesAndArraysAreTheSameData) {
  ASSERT_EQ(Run("whole", "none", {"--do_eval", "--do_predict"}).exit_code, 0);
  Write("train.csv.gz", Gzip(Read("train.csv")));
  Write("dev.csv.zst", Zstd(Read("dev.csv")));
  nlohmann::json array = nlohmann::json::array();
  std::istringstream lines(Read("test.csv"));
  std::string name, line;
  std::getline(lines, name);
  while (std::getline(lines, line)) array.push_back({{name, line}});
  for (const int indent : {-1, 2}) {
    Write("test.json", DumpJson(array, indent));
    ExpectResultsOf("whole", {"--train_file", Path("train.csv.gz"), "--validation_file",
                              Path("dev.csv.zst"), "--test_file", Path("test.json")});
  }
}

// Keys that nobody reads may come and go, be null or nested. It is long because it goes through all
// that reads such a file.
TEST_F(DataFilesTest, UnusedKeysOfJsonMayHaveAnyValue) {
  ASSERT_EQ(Run("whole", "none", {"--do_eval", "--do_predict"}).exit_code, 0);
  bool has_late_text = true;
  const auto write = [&](const std::string& from, const std::string& to) {
    std::istringstream lines(Read(from));
    std::string header, line, text;
    std::getline(lines, header);
    for (size_t row = 0; std::getline(lines, line); ++row) {
      nlohmann::json object = {{"sentence", line}};
      if (const size_t comma = line.rfind(','); header == "sentence,label") {
        object = {{"sentence", line.substr(0, comma)}, {"label", line.substr(comma + 1)}};
      }
      if (row % 3 == 0) object["a_note"] = nullptr;
      if (row % 3 == 1) object["a_note"] = {{"deep", {1, nullptr}}};
      if (row % 2 == 0) object["a_tags"] = nlohmann::json::array({"x"});
      if (row == 7 && has_late_text) object["b_late"] = "x";
      text += DumpJson(object) + "\n";
    }
    Write(to, text);
  };
  write("train.csv", "train.jsonl");
  write("dev.csv", "dev.jsonl");
  write("test.csv", "test.jsonl");
  ExpectResultsOf("whole",
                  {"--train_file", Path("train.jsonl"), "--validation_file", Path("dev.jsonl"),
                   "--test_file", Path("test.jsonl"), "--text_columns", "sentence"});
  // Only a text in some rows may be meant as a second one.
  const Args unnamed = {"--train_file",          Path("train.jsonl"), "--validation_file",
                        Path("dev.jsonl"),       "--test_file",       Path("test.jsonl"),
                        "--overwrite_output_dir"};
  fs::remove_all(Path("out"));
  ExpectError(
      Run("out", "none", unnamed),
      Path("train.jsonl") + ":1: key \"b_late\" is missing but other rows have a text there");
  has_late_text = false;
  write("train.csv", "train.jsonl");
  write("dev.csv", "dev.jsonl");
  write("test.csv", "test.jsonl");
  ExpectResultsOf("whole", unnamed);
  Write("bad.jsonl",
        "{\"sentence\": \"good film\", \"label\": \"positive\", \"w\": 1}\n"
        "{\"sentence\": \"bad film\", \"label\": \"negative\", \"w\": null}\n");
  for (const auto& [option, hint] :
       {std::pair("--text_columns",
                  "give each row a text there, or name the columns of texts with --text_columns"),
        std::pair("--label_column",
                  "give each row a label there, or name another column with --label_column"),
        std::pair("--sample_weight_column",
                  "give each row a weight there, or name another column with "
                  "--sample_weight_column"),
        std::pair("--text_column_names",
                  "give each row a text there, or name the columns of texts "
                  "with --text_column_names")}) {
    Args args = {"--train_file", Path("bad.jsonl"), option, "w"};
    if (option == std::string("--text_column_names")) args.back() = "sentence,w";
    if (args[2] != "--text_columns" && args[2] != "--text_column_names")
      args.insert(args.end(), {"--text_columns", "sentence"});
    for (const std::string& cache : {std::string("none"), Path("cache")}) {
      fs::remove_all(Path("out"));
      const RunResult run = Run("out", cache, args);
      ExpectError(run, Path("bad.jsonl") + ":2: the value of \"w\" is null");
      EXPECT_TRUE(Contains(run.err, std::string("\nhint: ") + hint + "\n")) << run.err;
    }
  }
}

TEST_F(DataFilesTest, MistakesAreOneLineEach) {
  const auto expect = [&](const Args& more, const std::string& message, const std::string& hint) {
    for (const std::string& cache : {std::string("none"), Path("cache")}) {
      const RunResult run = Run("out", cache, more);
      ExpectError(run, message);
      EXPECT_TRUE(Contains(run.err, "\nhint: " + hint + "\n")) << run.err;
    }
  };
  expect({"--train_file", Path("none*.csv")},
         "--train_file " + Path("none*.csv") + ": no file matches this pattern",
         "check the folder and the extension, such as data/*.csv");
  expect({"--train_file", Path("a.csv") + ",,b.csv"}, "--train_file has an empty name of a file",
         "write several files with one comma between them: a.csv,b.csv");
  Write("other.csv", "text,label\ngood film,positive\n");
  expect({"--train_file", Path("train.csv"), Path("other.csv")},
         Path("other.csv") + ": its columns are text, label but those of " + Path("train.csv") +
             " are sentence, label",
         "all files of --train_file must have the same columns");
  expect({"--do_eval", "--validation_file", Path("dev.csv") + "," + Path("other.csv")},
         Path("other.csv") + ": its columns are text, label but those of " + Path("dev.csv") +
             " are sentence, label",
         "all files of --validation_file must have the same columns");
  Write("cut.csv.gz", Gzip(Read("train.csv")).substr(0, 200));
  expect({"--train_file", Path("cut.csv.gz")},
         Path("cut.csv.gz") + ": the file is cut short: its compressed data have no end",
         "copy or download it again");
  Write("cut.csv.zst", Zstd(Read("dev.csv")).substr(0, 100));
  expect({"--do_eval", "--validation_file", Path("cut.csv.zst")},
         Path("cut.csv.zst") + ": the file is cut short: its compressed data have no end",
         "copy or download it again");
  Write("plain.csv.gz", Read("train.csv"));
  expect({"--train_file", Path("plain.csv.gz")},
         Path("plain.csv.gz") + ": the file is not compressed by gzip",
         "leave .gz out of its name if it is not compressed");
  WritePart("b.csv", "train.csv", 0, 3);
  Write("b.csv", Read("b.csv") + "good film\n");  // the error names the file that it is in
  expect({"--train_file", Path("train.csv"), Path("b.csv")},
         Path("b.csv") + ":5: expected 2 columns (sentence, label) but got 1",
         "put a field that contains a comma or a line break in double quotes");
}

}  // namespace
}  // namespace lathe
