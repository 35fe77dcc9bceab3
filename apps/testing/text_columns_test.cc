// Tests --text_column_names: columns that make one text together, as run_classification joins them.
#include <filesystem>
#include <sstream>

#include "lathe/apps/testing/dataset_cache_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;
using Json = nlohmann::json;

class TextColumnsTest : public DatasetCacheTest {
 protected:
  // Writes each file twice: NAME with the columns title, n, body and label, and joined_NAME with
  // their texts in one column.
  void SetUp() override {
    DatasetCacheTest::SetUp();
    for (const std::string name : {"train.csv", "dev.csv", "test.csv"}) Divide(name);
  }
  void Divide(const std::string& name) const {
    std::istringstream lines(Read(name));
    std::string line, parts = "title,n,body,label\n", whole = "sentence,label\n";
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      const size_t comma = line.find(','), space = line.find(' ');
      const std::string label = comma == std::string::npos ? "" : line.substr(comma + 1);
      const std::string title = line.substr(0, space);
      const std::string body = line.substr(space + 1, comma - space - 1);
      parts += title + ",1," + body + "," + label + "\n";
      whole += body + " ! " + title + " ! 1," + label + "\n";
    }
    Write(name, parts);
    Write("joined_" + name, whole);
  }
  Args WholeFiles() const {
    return {"--train_file", Path("joined_train.csv"), "--validation_file", Path("joined_dev.csv"),
            "--test_file",  Path("joined_test.csv"),  "--text_columns",    "sentence"};
  }
  static Args ColumnOptions() {
    return {"--text_column_names", "body,title,n", "--text_column_delimiter", " ! "};
  }
  static Args With(Args a, const Args& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  // Runs with the data in memory, then twice with the cache, and expects the results of the run
  // into the folder `files` each time. Returns the last run.
  RunResult ExpectResultsOfFiles(const Args& more) {
    RunResult run;
    for (const char* out : {"memory", "first", "second"}) {
      fs::remove_all(Path(out));
      run = Run(out, out == std::string("memory") ? "none" : Path("cache"), more);
      EXPECT_EQ(run.exit_code, 0) << run.err;
      ExpectSameResults(out, "files");
    }
    return run;
  }
};

TEST_F(TextColumnsTest, GiveTheResultsOfFilesWithTheJoinedTexts) {
  const Args work = {"--do_eval", "--do_predict"};
  ASSERT_EQ(Run("files", "none", With(WholeFiles(), work)).exit_code, 0);
  const RunResult run = ExpectResultsOfFiles(With(ColumnOptions(), work));
  EXPECT_TRUE(Contains(run.out, "texts       body + title + n\n")) << run.out;
  for (const std::string part : {"training", "validation", "test"})
    EXPECT_TRUE(Contains(run.out, FoundNote(part))) << run.out;
  // Only the column's name differs in the table of errors.
  const std::string errors = Read("memory/eval_errors.tsv"),
                    expected = Read("files/eval_errors.tsv");
  EXPECT_TRUE(errors.starts_with("line\tlabel\tprediction\tprobability\tbody + title + n\n"));
  EXPECT_EQ(errors.substr(errors.find('\n')), expected.substr(expected.find('\n')));
  // Columns may have numbers, and the cache knows that they are the same.
  const Args numbers = {"--text_column_names", "3,1,2", "--text_column_delimiter", " ! "};
  const RunResult numbered = Run("numbers", Path("cache"), With(numbers, work));
  ASSERT_EQ(numbered.exit_code, 0) << numbered.err;
  EXPECT_TRUE(Contains(numbered.out, FoundNote("training"))) << numbered.out;
  ExpectSameResults("numbers", "files");
}

TEST_F(TextColumnsTest, TheCacheKnowsColumnsOrderAndDelimiter) {
  ASSERT_EQ(Run("out", Path("cache"), ColumnOptions()).exit_code, 0);
  for (const Args& other :
       std::vector<Args>{{"--text_column_names", "title,body,n", "--text_column_delimiter", " ! "},
                         {"--text_column_names", "body,title,n"},
                         {"--text_column_names", "body,title", "--text_column_delimiter", " ! "},
                         {"--text_columns", "body,title"}}) {
    const RunResult run = Run("out", Path("cache"), With(other, {"--overwrite_output_dir"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Contains(run.out, MadeNote("training"))) << run.out;
  }
  EXPECT_EQ(Count("train-"), 5);
}

// --validation_split, --drop_duplicates and the notes on rows look at the joined texts.
TEST_F(TextColumnsTest, RowsAreChosenByTheJoinedTexts) {
  Write("joined_train.csv", Read("joined_train.csv") + "bad ! film ! 1,negative\n" +
                                "bad ! film ! 1,negative\nbad ! film ! 1,positive\n");
  Write("train.csv",
        Read("train.csv") + "film,1,bad,negative\nfilm,1,bad,negative\n" + "film,1,bad,positive\n");
  const Args more = {"--validation_split", "0.3", "--drop_duplicates", "--do_eval"};
  const auto run = [&](const std::string& out, const std::string& file, const std::string& cache,
                       const Args& columns) {
    const Args args = {"--config_name",
                       Path("model"),
                       "--train_file",
                       Path(file),
                       "--output_dir",
                       Path(out),
                       "--do_train",
                       "--max_steps",
                       "10",
                       "--num_threads",
                       "1",
                       "--dataset_cache",
                       cache};
    return RunProgram("finetune", With(With(args, columns), more));
  };
  const RunResult files = run("files", "joined_train.csv", "none", {"--text_columns", "sentence"});
  ASSERT_EQ(files.exit_code, 0) << files.err;
  for (const std::string& cache : {std::string("none"), Path("cache")}) {
    fs::remove_all(Path("columns"));
    const RunResult columns = run("columns", "train.csv", cache, ColumnOptions());
    ASSERT_EQ(columns.exit_code, 0) << columns.err;
    ExpectSameResults("columns", "files");
    for (const RunResult* each : {&files, &columns}) {
      EXPECT_TRUE(Contains(each->out, "--drop_duplicates leaves out ")) << each->out;
      EXPECT_TRUE(Contains(each->out, "labels that contradict each other")) << each->out;
    }
  }
}

TEST_F(TextColumnsTest, SeveralProcessesReadThemToo) {
  const Args work = {"--do_eval", "--max_steps", "10"};
  const RunResult files = Launch(2, Finetune("files", With(WholeFiles(), work)));
  ASSERT_EQ(files.exit_code, 0) << files.err;
  const RunResult columns = Launch(2, Finetune("columns", With(ColumnOptions(), work)));
  ASSERT_EQ(columns.exit_code, 0) << columns.err;
  ExpectSameResults("columns", "files");
  EXPECT_TRUE(Exists("columns/eval_errors.tsv"));
}

TEST_F(TextColumnsTest, PredictAndEvaluateJoinThemToo) {
  ASSERT_EQ(Run("out", "none", ColumnOptions()).exit_code, 0);
  const auto run_lathe = [&](const Args& args, const Args& columns) {
    const RunResult run = RunProgram("lathe", With(args, columns));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  EXPECT_EQ(run_lathe({"predict", Path("out"), "--file", Path("test.csv")}, ColumnOptions()),
            run_lathe({"predict", Path("out"), "--file", Path("joined_test.csv")},
                      {"--text_columns", "sentence"}));
  // The model's folder remembers them.
  EXPECT_EQ(run_lathe({"predict", Path("out"), "--file", Path("test.csv")}, {}),
            run_lathe({"predict", Path("out"), "--file", Path("test.csv")}, ColumnOptions()));
  // The rows come back with their own columns.
  run_lathe({"predict", Path("out"), "--file", Path("test.csv"), "--output", Path("done.csv")},
            ColumnOptions());
  EXPECT_TRUE(Read("done.csv").starts_with("title,n,body,label,prediction,probability\n"));
  run_lathe({"evaluate", Path("out"), Path("dev.csv"), "--output", Path("columns.json"), "--errors",
             Path("errors.tsv")},
            ColumnOptions());
  run_lathe({"evaluate", Path("out"), Path("joined_dev.csv"), "--output", Path("files.json")}, {});
  EXPECT_EQ(ReadJson("columns.json"), ReadJson("files.json"));
  EXPECT_TRUE(
      Read("errors.tsv").starts_with("line\tlabel\tprediction\tprobability\tbody + title + n\n"));
}

TEST_F(TextColumnsTest, MistakesAreOneLineEach) {
  const auto expect = [&](const Args& columns, const std::string& message, int exit_code) {
    for (const std::string& cache : {std::string("none"), Path("cache")})
      ExpectError(Run("out", cache, columns), message, exit_code);
  };
  const std::string file = Path("train.csv");
  expect({"--text_column_names", "title,text"}, file + ": no column \"text\"; it has: ", 1);
  expect({"--text_column_names", "title,label"},
         file + ": column \"label\" is the label and cannot be a text", 1);
  expect({"--text_column_names", "title,9"}, file + ": there is no column 9; it has 4", 1);
  expect({"--text_column_names", "title,1"}, "--text_column_names names \"title\" twice", 1);
  expect({"--text_column_names", "title,title"}, "--text_column_names names \"title\" twice", 2);
  expect({"--text_column_names", "title", "--text_columns", "body"},
         "--text_column_names and --text_columns contradict each other", 2);
  expect({"--text_column_names", "title,body", "--text_column_delimiter", "\xff"},
         "--text_column_delimiter is not UTF-8", 2);
  const RunResult missing = Run("out", "none", {"--text_column_names", "title,text"});
  EXPECT_TRUE(Contains(missing.err, "hint: name another column with --text_column_names or "))
      << missing.err;
  Write("other.csv", "title,n,text,label\ngood,1,film,positive\n");
  expect({"--text_column_names", "title,body", "--do_eval", "--validation_file", Path("other.csv")},
         Path("other.csv") + ": no column \"body\"", 1);
  ExpectError(RunProgram("lathe", {"predict", Path("out"), "--text_column_names", "title,body"}),
              "--text_column_names needs --file", 2);
}

}  // namespace
}  // namespace lathe
