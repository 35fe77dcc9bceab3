// Tests which rows and columns of the data a run uses: --validation_split, --drop_duplicates,
// columns by number, and warnings about rows.
#include <filesystem>
#include <set>
#include <sstream>

#include "lathe/apps/testing/dataset_cache_testing.h"
#include "lathe/train/rows/validation_rule.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

class DataRowsTest : public DatasetCacheTest {
 protected:
  // Runs with the data in memory, then twice with the cache, and expects the same results each
  // time. Returns the three runs.
  std::vector<RunResult> RunThrice(const Args& more) {
    std::vector<RunResult> runs;
    for (const char* out : {"memory", "first", "second", "cache"}) fs::remove_all(Path(out));
    runs.push_back(Run("memory", "none", more));
    runs.push_back(Run("first", Path("cache"), more));
    runs.push_back(Run("second", Path("cache"), more));
    for (const RunResult& run : runs) EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Contains(runs[2].out, FoundNote("training"))) << runs[2].out;
    ExpectSameResults("first", "memory");
    ExpectSameResults("second", "memory");
    return runs;
  }
  void ExpectNote(const std::vector<RunResult>& runs, const std::string& note) {
    for (const RunResult& run : runs) EXPECT_TRUE(Contains(run.out, note)) << run.out;
  }
  // Expects all three ways to fail alike.
  void ExpectMistake(const Args& more, const std::string& message, int exit_code = 1) {
    for (const std::string& cache : {std::string("none"), Path("cache")})
      ExpectError(Run("out", cache, more), message, exit_code);
  }
};

Args EvalEveryTen() { return {"--do_eval", "--eval_strategy", "steps", "--eval_steps", "10"}; }

Args Joined(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(DataRowsTest, ALabelThatOnlyValidationHasIsNoError) {
  Write("rare.csv", Read("dev.csv") + "odd film,rare\n");
  const std::vector<RunResult> runs =
      RunThrice({"--do_eval", "--validation_file", Path("rare.csv")});
  ExpectNote(runs, "label \"rare\" is in no training row, but in " + Path("rare.csv") +
                       ":42; the model can't learn it");
  for (const char* out : {"memory", "second"}) {
    EXPECT_EQ(ReadJson(std::string(out) + "/config.json")["id2label"]["2"], "rare");
    const nlohmann::json rare = ReadJson(std::string(out) + "/eval_report.json")["classes"][2];
    EXPECT_EQ(rare["label"], "rare");
    EXPECT_EQ(rare["support"], 1) << rare;
    EXPECT_EQ(rare["recall"], 0) << rare;
  }
  // With --num_labels nothing is added, and a number among names is a slip.
  ExpectMistake({"--validation_file", Path("rare.csv"), "--do_eval", "--num_labels", "2"},
                "rare.csv:42: label \"rare\" was not seen in training");
  Write("slip.csv", "sentence,label\ngood,3\n");
  ExpectMistake({"--validation_file", Path("slip.csv"), "--do_eval"},
                "slip.csv:2: label \"3\" was not seen in training");
}

TEST_F(DataRowsTest, ASplitGivesTheResultsOfTwoFiles) {
  TextTable table = ParseTextTable("train.csv", Read("train.csv"));
  ValidationRule rule(0.3);
  rule.Add(table, {"sentence", ""}, "label");
  rule.Decide(LabelKind::kSingleLabel, "train.csv");
  const std::vector<bool> validates = rule.Validates(table, {"sentence", ""}, "label");
  std::string parts[2] = {"sentence,label\n", "sentence,label\n"};
  for (size_t row = 0; row < validates.size(); ++row)
    parts[validates[row]] += table.columns[0][row] + "," + table.columns[1][row] + "\n";
  Write("rest.csv", parts[0]);
  Write("held.csv", parts[1]);
  for (const Args& more : {Args{}, Args{"--max_eval_samples", "9", "--max_train_samples", "50"}}) {
    fs::remove_all(Path("files"));
    const Args common =
        Joined(Joined(EvalEveryTen(), {"--do_predict", "--test_file", Path("test.csv")}), more);
    ASSERT_EQ(Run("files", "none",
                  Joined(common,
                         {"--train_file", Path("rest.csv"), "--validation_file", Path("held.csv")}))
                  .exit_code,
              0);
    // TrainingArgs name a validation file, so this command has its own.
    Args args = {"--config_name",
                 Path("model"),
                 "--train_file",
                 Path("train.csv"),
                 "--validation_split",
                 "0.3",
                 "--num_threads",
                 "1",
                 "--max_steps",
                 "30",
                 "--do_train",
                 "--logging_steps",
                 "1",
                 "--learning_rate",
                 "1e-2"};
    args = Joined(args, common);
    for (const char* out : {"memory", "first", "second"}) {
      fs::remove_all(Path(out));
      const std::string cache = out == std::string("memory") ? "none" : Path("cache");
      const RunResult run = RunProgram(
          "finetune", Joined(args, {"--output_dir", Path(out), "--dataset_cache", cache}));
      ASSERT_EQ(run.exit_code, 0) << run.err;
      EXPECT_TRUE(Contains(run.out, "(--validation_split of " + Path("train.csv") + ")"))
          << run.out;
      if (out == std::string("second")) {
        EXPECT_TRUE(Contains(run.out, FoundNote("training")));
        EXPECT_TRUE(Contains(run.out, FoundNote("validation")));
      }
      ExpectSameResults(out, "files");
      EXPECT_EQ(Logged(out, "eval_loss"), Logged("files", "eval_loss"));
    }
    fs::remove_all(Path("cache"));
  }
}

TEST_F(DataRowsTest, DropsRepeatedRows) {
  std::istringstream lines(Read("train.csv"));
  std::string once, twice, line;
  std::set<std::string> seen;
  int64_t repeated = 0;
  for (size_t row = 0; std::getline(lines, line); ++row) {
    const bool is_new = seen.insert(line).second;
    if (is_new) once += line + "\n";
    twice += line + "\n";
    if (row > 0 && row % 2 == 0) twice += line + "\n";
    repeated += (is_new ? 0 : 1) + (row > 0 && row % 2 == 0 ? 1 : 0);
  }
  Write("train.csv", twice);
  Write("once.csv", once);
  const std::string dev = Read("dev.csv");
  ASSERT_EQ(Run("files", "none", {"--train_file", Path("once.csv"), "--do_eval", "--do_predict"})
                .exit_code,
            0);
  const auto runs = RunThrice({"--drop_duplicates", "--do_predict"});
  ExpectNote(runs, "--drop_duplicates leaves out " + std::to_string(repeated) +
                       " repeated rows of the training data");
  EXPECT_EQ(Model("memory"), Model("files"));
  EXPECT_EQ(Read("memory/predict_results.tsv"), Read("files/predict_results.tsv"));
  // Validation rows count, too; those to predict stay.
  Write("dev.csv", dev + dev.substr(dev.find('\n') + 1));
  Write("test.csv", "sentence\ngood film\ngood film\n");
  RunThrice({"--drop_duplicates", "--do_eval", "--do_predict"});
  EXPECT_LE(ReadJson("memory/eval_results.json")["eval_samples"], 40);
  const std::string predictions = Read("memory/predict_results.tsv");
  EXPECT_EQ(std::count(predictions.begin(), predictions.end(), '\n'), 3);
}

TEST_F(DataRowsTest, DropsRowsWhoseLabelsMeanTheSame) {
  const Args files = {"--train_file",     Path("rows.jsonl"),  "--validation_file",
                      Path("rows.jsonl"), "--drop_duplicates", "--do_eval"};
  Write("rows.jsonl",
        "{\"text\":\"good film\",\"label\":[\"fine\",\"long\"]}\n"
        "{\"text\":\"good film\",\"label\":[\"long\",\"fine\"]}\n"
        "{\"text\":\"bad film\",\"label\":[]}\n");
  ExpectNote(RunThrice(files), "--drop_duplicates leaves out 1 repeated row of the training data");
  EXPECT_EQ(ReadJson("second/eval_results.json")["eval_samples"], 2);
  Write("rows.jsonl",
        "{\"text\":\"good film\",\"label\":1}\n{\"text\":\"good film\",\"label\":1.0}\n"
        "{\"text\":\"good film\",\"label\":\"1.00\"}\n{\"text\":\"bad film\",\"label\":0.5}\n");
  ExpectNote(RunThrice(files), "--drop_duplicates leaves out 2 repeated rows of the training data");
  EXPECT_EQ(ReadJson("second/eval_results.json")["eval_samples"], 2);
}

TEST_F(DataRowsTest, WarnsOfTextsThatAreInBothOrContradict) {
  const std::string header = "sentence,label\n";
  Write("train.csv", header +
                         "good film,positive\nbad film,negative\na dull plot,negative\n"
                         "bad film,positive\ngood film,positive\n");
  Write("dev.csv", header + "we saw,negative\na dull plot,negative\ngood film,negative\n");
  const auto runs = RunThrice({"--do_eval"});
  ExpectNote(runs, "1 text has labels that contradict each other, such as: " + Path("train.csv") +
                       ":3 says \"negative\", " + Path("train.csv") + ":5 says \"positive\"");
  ExpectNote(runs,
             "2 validation rows have a text of the training data, which flatters the metrics, such "
             "as: " +
                 Path("dev.csv") + ":3 has the text of " + Path("train.csv") +
                 ":4; 1 of them has "
                 "another label than there, such as: " +
                 Path("dev.csv") + ":4 says \"negative\", " + Path("train.csv") +
                 ":2 says \"positive\"");
  Write("train.csv", header + "good film,positive\nbad film,negative\n");
  Write("dev.csv", header + "we saw,negative\n");
  for (const RunResult& run : RunThrice({"--do_eval"})) {
    EXPECT_FALSE(Contains(run.out, "contradict")) << run.out;
    EXPECT_FALSE(Contains(run.out, "flatters")) << run.out;
  }
}

TEST_F(DataRowsTest, ColumnsMayBeGivenByNumber) {
  Write("train.tsv", "id\tlabel\tmore\ttext\n1\t0\tbad\tgood film\n2\t1\tgood\tbad film\n");
  const Args file = {"--train_file", Path("train.tsv")};
  ASSERT_EQ(Run("files", "none", Joined(file, {"--text_columns", "text,more"})).exit_code, 0);
  const auto runs = RunThrice(Joined(file, {"--text_columns", "4,3", "--label_column", "2"}));
  ExpectNote(runs, "texts       text and more");
  EXPECT_EQ(Model("memory"), Model("files"));
  ExpectMistake(Joined(file, {"--text_columns", "5"}),
                Path("train.tsv") + ": there is no column 5; it has 4");
  ExpectMistake(Joined(file, {"--text_columns", "2"}),
                Path("train.tsv") + ": column \"label\" is the label and cannot be a text");
}

TEST_F(DataRowsTest, TheLongestTrainingTextMayDecideOnTheLength) {
  // A training text has 9 tokens at most, and a validation text more than the model takes.
  std::string longer = "sentence,label\na";
  for (int i = 0; i < 40; ++i) longer += " good";
  Write("dev.csv", longer + ",positive\nbad film,negative\n");
  ASSERT_EQ(Run("files", "none", {"--do_eval", "--max_seq_length", "9"}).exit_code, 0);
  const auto runs = RunThrice({"--do_eval", "--max_seq_length", "auto"});
  ExpectNote(runs, "--max_seq_length auto: texts are cut to 9 tokens");
  ExpectNote(runs, "1 cut to 9 (" + Path("dev.csv") + ")");
  ExpectSameResults("memory", "files");
  // The model takes 32 tokens.
  Write("train.csv", Read("train.csv") + Read("dev.csv").substr(longer.find('\n') + 1));
  ExpectNote(RunThrice({"--do_eval", "--max_seq_length", "auto"}),
             "--max_seq_length auto: texts are cut to 32 tokens");
  ExpectMistake({"--max_seq_length", "0"}, "--max_seq_length must be at least 1 but is \"0\"", 2);
  ExpectMistake({"--max_seq_length", "long"},
                "--max_seq_length must be a whole number or auto but is \"long\"", 2);
  // Without a training the model's limit holds.
  const RunResult run = RunProgram(
      "finetune", {"--model_name_or_path", Path("memory"), "--output_dir", Path("eval"),
                   "--do_eval", "--validation_file", Path("dev.csv"), "--max_seq_length", "auto"});
  EXPECT_TRUE(Contains(run.out, "1 cut to 32 (")) << run.out;
}

TEST_F(DataRowsTest, MistakesWithASplitAreOneLineEach) {
  const auto expect = [&](const Args& more, const std::string& message, int exit_code) {
    for (const std::string& cache : {std::string("none"), Path("cache")}) {
      Args args = {"--config_name",   Path("model"),  "--train_file",
                   Path("train.csv"), "--output_dir", Path("out"),
                   "--do_train",      "--max_steps",  "1",
                   "--dataset_cache", cache};
      ExpectError(RunProgram("finetune", Joined(args, more)), message, exit_code);
    }
  };
  for (const char* share : {"1", "-0.1", "1.5"}) {
    expect({"--validation_split", share}, "--validation_split must be above 0 and below 1", 2);
  }
  expect({"--validation_split", "0.1", "--validation_file", Path("dev.csv")},
         "--validation_split and --validation_file exclude each other", 2);
  expect({"--validation_split", "0.1", "--do_train=false", "--do_eval"},
         "--validation_split needs --do_train", 2);
  Write("train.csv", "sentence,label\ngood film,positive\ngood film,negative\n");
  expect({"--validation_split", "0.5"},
         Path("train.csv") + ": --validation_split needs two different texts at least", 1);
  Write("train.csv", "sentence,label\ngood film,positive\nbad film,negative\n");
  expect({"--validation_split", "0.5"},
         Path("train.csv") + ": --validation_split needs a class with two different texts", 1);
  // A class with one text only trains, and the run says so.
  Write("train.csv", "sentence,label\ngood film,positive\nbad film,negative\na plot,negative\n");
  for (const std::string& cache : {std::string("none"), Path("cache"), Path("cache")}) {
    const RunResult run =
        RunProgram("finetune", {"--config_name", Path("model"), "--train_file", Path("train.csv"),
                                "--output_dir", Path("out"), "--overwrite_output_dir", "--do_train",
                                "--do_eval", "--max_steps", "1", "--dataset_cache", cache,
                                "--validation_split", "0.5"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Contains(run.out,
                         "--validation_split leaves no row for validation of 1 class that has one "
                         "text only: \"positive\""))
        << run.out;
    EXPECT_EQ(ReadJson("out/eval_results.json")["eval_samples"], 1);
  }
}

}  // namespace
}  // namespace lathe
