// eval_errors.tsv: each wrong prediction with the file and the line of its row, however the
// validation data come.
#include <filesystem>
#include <map>
#include <sstream>

#include "lathe/apps/testing/dataset_cache_testing.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/table_files/compress_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

Args Lines(const std::string& text) {
  Args lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Args Cells(const std::string& line) {
  Args cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '\t');) cells.push_back(cell);
  return cells;
}

class EvalErrorsTest : public DatasetCacheTest {
 protected:
  // Expects out/eval_errors.tsv to name rows of these files, whose contents are given as they are
  // without compression. With one file there is no column of files. Returns the texts.
  Args CheckErrors(const std::map<std::string, std::string>& files) {
    const Args lines = Lines(Read("out/eval_errors.tsv"));
    const bool names_file = files.size() > 1;
    EXPECT_EQ(lines.at(0), std::string(names_file ? "file\t" : "") +
                               "line\tlabel\tprediction\tprobability\tsentence");
    Args texts;
    for (size_t i = 1; i < lines.size(); ++i) {
      const Args cells = Cells(lines[i]);
      const size_t first = names_file ? 1 : 0;
      const auto file = names_file ? files.find(cells.at(0)) : files.begin();
      if (file == files.end()) {
        ADD_FAILURE() << lines[i];
        continue;
      }
      const std::string row = Lines(file->second).at(std::stoul(cells.at(first)) - 1);
      EXPECT_TRUE(Contains(row, cells.at(first + 1))) << row << "\n" << lines[i];
      EXPECT_TRUE(Contains(row, cells.at(first + 4))) << row << "\n" << lines[i];
      texts.push_back(cells.back());
    }
    EXPECT_GE(texts.size(), 2u) << "the test needs a model that errs";
    return texts;
  }
  // Trains one step and evaluates, with the data in memory and twice with the cache.
  void ExpectErrorsOf(const Args& more, const std::map<std::string, std::string>& files,
                      const Args& texts = {}) {
    for (const std::string& cache : {std::string("none"), Path("cache"), Path("cache")}) {
      fs::remove_all(Path("out"));
      Args args = {"--do_eval", "--max_steps", "1"};
      args.insert(args.end(), more.begin(), more.end());
      const RunResult run = Run("out", cache, args);
      ASSERT_EQ(run.exit_code, 0) << run.err;
      EXPECT_FALSE(Contains(run.out, "is not written")) << run.out;
      const Args found = CheckErrors(files);
      if (!texts.empty()) {
        EXPECT_EQ(found, texts);
      }
    }
    fs::remove_all(Path("cache"));
  }
};

TEST_F(EvalErrorsTest, SeveralFilesOfSeveralForms) {
  ExpectErrorsOf({}, {{Path("dev.csv"), Read("dev.csv")}});
  const Args texts = CheckErrors({{Path("dev.csv"), Read("dev.csv")}});
  std::string begin = "sentence,label\n", objects, rest = "sentence\tlabel\n";
  const Args rows = Lines(Read("dev.csv"));
  for (size_t i = 1; i < rows.size(); ++i) {
    const size_t comma = rows[i].rfind(',');
    const std::string text = rows[i].substr(0, comma), label = rows[i].substr(comma + 1);
    if (i <= 10) begin += rows[i] + "\n";
    if (i > 10 && i <= 25) {
      objects += DumpJson(nlohmann::json{{"label", label}, {"sentence", text}}) + "\n";
    }
    if (i > 25) rest += text + "\t" + label + "\n";
  }
  fs::create_directories(Path("parts"));
  Write("parts/1.csv.gz", Gzip(begin));
  Write("parts/2.jsonl", objects);
  Write("parts/3.tsv.zst", Zstd(rest));
  ExpectErrorsOf({"--validation_file", Path("parts/*")},
                 {{Path("parts/1.csv.gz"), begin},
                  {Path("parts/2.jsonl"), objects},
                  {Path("parts/3.tsv.zst"), rest}},
                 texts);
}

// All rows of such an array lie on its only line.
TEST_F(EvalErrorsTest, AnArrayOnOneLineHasElements) {
  nlohmann::json array = nlohmann::json::array();
  Args rows = Lines(Read("dev.csv"));
  rows.push_back(Lines(Read("train.csv")).at(1));  // a text that both have
  for (size_t i = 1; i < rows.size(); ++i) {
    const size_t comma = rows[i].rfind(',');
    array.push_back({{"sentence", rows[i].substr(0, comma)}, {"label", rows[i].substr(comma + 1)}});
  }
  array.push_back({{"sentence", "odd film"}, {"label", "rare"}});
  Write("dev.json", DumpJson(array));
  for (const std::string& cache : {std::string("none"), Path("cache"), Path("cache")}) {
    const RunResult run = Run("out", cache,
                              {"--overwrite_output_dir", "--do_eval", "--max_steps", "1",
                               "--validation_file", Path("dev.json")});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Contains(run.out, "label \"rare\" is in no training row, but in " +
                                      Path("dev.json") + ":1: element " +
                                      std::to_string(array.size()) + ";"))
        << run.out;
    EXPECT_TRUE(Contains(run.out, " has the text of " + Path("train.csv") + ":")) << run.out;
    EXPECT_TRUE(Contains(run.out, ": " + Path("dev.json") + ":1: element ")) << run.out;
    const Args lines = Lines(Read("out/eval_errors.tsv"));
    ASSERT_GE(lines.size(), 3u);
    EXPECT_EQ(lines[0], "line\telement\tlabel\tprediction\tprobability\tsentence");
    for (size_t i = 1; i < lines.size(); ++i) {
      const Args cells = Cells(lines[i]);
      EXPECT_EQ(cells.at(0), "1");
      const nlohmann::json& row = array.at(std::stoul(cells.at(1)) - 1);
      EXPECT_EQ(row["label"], cells.at(2)) << lines[i];
      EXPECT_EQ(row["sentence"], cells.at(5)) << lines[i];
    }
  }
}

TEST_F(EvalErrorsTest, SomeRowsOfTheFiles) {
  const std::map<std::string, std::string> dev = {{Path("dev.csv"), Read("dev.csv")}};
  ExpectErrorsOf({"--max_eval_samples", "17"}, dev);
  const Args few = CheckErrors(dev);
  // The rows come twice, but a repeated one is dropped.
  const std::string twice =
      Read("dev.csv") + Read("dev.csv").substr(Read("dev.csv").find('\n') + 1);
  Write("twice.csv", twice);
  ExpectErrorsOf({"--drop_duplicates", "--validation_file", Path("twice.csv")},
                 {{Path("twice.csv"), twice}});
  EXPECT_LE(few.size(), 17u);
}

TEST_F(EvalErrorsTest, APartOfTheTrainingRows) {
  const std::map<std::string, std::string> train = {{Path("train.csv"), Read("train.csv")}};
  for (const Args& more : {Args{}, Args{"--max_eval_samples", "20"}}) {
    for (const std::string& cache : {std::string("none"), Path("cache"), Path("cache")}) {
      fs::remove_all(Path("out"));
      Args args = {"--config_name", Path("model"), "--train_file",       Path("train.csv"),
                   "--output_dir",  Path("out"),   "--validation_split", "0.3",
                   "--num_threads", "1",           "--dataset_cache",    cache,
                   "--do_train",    "--do_eval",   "--max_steps",        "1"};
      args.insert(args.end(), more.begin(), more.end());
      const RunResult run = RunProgram("finetune", args);
      ASSERT_EQ(run.exit_code, 0) << run.err;
      CheckErrors(train);
    }
  }
}

TEST_F(EvalErrorsTest, AFileThatCannotBeReadTwiceIsReported) {
  // A file's name must have an extension, so a link leads to standard input.
  fs::create_symlink("/dev/stdin", Path("piped.csv"));
  const RunResult piped = Run(
      "piped", "none", {"--do_eval", "--max_steps", "1", "--validation_file", Path("piped.csv")},
      {.input = Read("dev.csv")});
  ASSERT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_FALSE(Exists("piped/eval_errors.tsv"));
  EXPECT_TRUE(Contains(piped.out, "note: eval_errors.tsv is not written: " + Path("piped.csv") +
                                      ": is no regular file, so it can't be read twice\n"))
      << piped.out;
}

TEST_F(EvalErrorsTest, TheCommandEvaluateTakesSeveralFiles) {
  ASSERT_EQ(Run("out", "none", {"--max_steps", "1"}).exit_code, 0);
  const Args rows = Lines(Read("dev.csv"));
  std::string begin, rest = rows[0] + "\n";
  for (size_t i = 0; i < rows.size(); ++i) (i < 20 ? begin : rest) += rows[i] + "\n";
  Write("dev1.csv", begin);
  Write("dev2.csv", rest);
  for (const Args& files : {Args{Path("dev[12].csv")}, Args{Path("dev1.csv"), Path("dev2.csv")}}) {
    fs::remove(Path("out/eval_errors.tsv"));
    Args args = {"evaluate", Path("out"), "--errors", Path("out/eval_errors.tsv")};
    args.insert(args.begin() + 2, files.begin(), files.end());
    const RunResult run = RunProgram("lathe", args);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    CheckErrors({{Path("dev1.csv"), begin}, {Path("dev2.csv"), rest}});
  }
}

}  // namespace
}  // namespace lathe
