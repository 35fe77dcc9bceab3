// `lathe evaluate`: the numbers of `finetune --do_eval`, from a saved model.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

class EvaluateCommandTest : public CliTest {
 protected:
  RunResult EvaluateOut(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"evaluate", Path("out")};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("lathe", args);
  }
};

TEST_F(EvaluateCommandTest, HasTheNumbersOfFinetune) {
  const RunResult train = Train({"--do_eval", "--num_train_epochs", "2", "--no_report"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  const RunResult run = EvaluateOut({Path("dev.csv"), "--output", Path("report.json"), "--errors",
                                     Path("errors.tsv"), "--num_threads", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const Json report = ReadJson("report.json"), expected = ReadJson("out/eval_report.json");
  EXPECT_EQ(report["confusion_matrix"], expected["confusion_matrix"]);
  EXPECT_EQ(report["metrics"], expected["metrics"]);
  EXPECT_NEAR(report["loss"], expected["loss"], 1e-6);
  EXPECT_NEAR(report["roc_auc"], expected["roc_auc"], 1e-6);
  EXPECT_EQ(report.size(), expected.size());
  std::istringstream errors(Read("errors.tsv")), of_training(Read("out/eval_errors.tsv"));
  std::string a, b;
  while (std::getline(of_training, b)) {
    ASSERT_TRUE(std::getline(errors, a));
    EXPECT_EQ(a.substr(0, a.find('\t')), b.substr(0, b.find('\t')));
  }
  EXPECT_FALSE(std::getline(errors, a));
  // What is printed is the end of what finetune prints, but for the times.
  const auto table = [](const std::string& out) { return out.substr(out.rfind("classes   ")); };
  EXPECT_EQ(table(run.out), table(train.out));
  EXPECT_TRUE(run.out.starts_with("eval\n  eval_accuracy ")) << run.out;

  const RunResult narrow =
      EvaluateOut({Path("dev.csv"), "--text_columns", "sentence", "--bf16", "--batch_size", "7"});
  ASSERT_EQ(narrow.exit_code, 0) << narrow.err;
  EXPECT_EQ(narrow.err, ExpectedNotes("bf16"));
}

TEST_F(EvaluateCommandTest, OtherColumns) {
  ASSERT_EQ(Train({"--max_steps", "4"}).exit_code, 0);
  Write("other.csv", "n,a,stars,b\n1,good,positive,film\n2,bad,negative,plot\n");
  const RunResult run = EvaluateOut({Path("other.csv"), "--text_columns", "a,b", "--label_column",
                                     "stars", "--output", Path("report.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ReadJson("report.json")["num_samples"], 2);
}

TEST_F(EvaluateCommandTest, APairThatNoOptionNamesHasANote) {
  Write("train.csv", "text,label,w\ngood,positive,1\nbad,negative,2\n");
  const RunResult train = Train({"--max_steps", "2", "--sample_weight_column", "w"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  const auto expect = [&](const std::string& note) {
    for (const RunResult& run :
         {EvaluateOut({Path("train.csv")}),
          RunProgram("lathe", {"predict", Path("out"), "--file", Path("train.csv")})}) {
      ASSERT_EQ(run.exit_code, 0) << run.err;
      EXPECT_TRUE(run.err.starts_with(note)) << run.err;
      EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    }
  };
  expect("note: the texts are in \"text\", as in the training\n");
  // A folder that Transformers or an older Lathe has written.
  std::filesystem::remove(Path("out/data_columns.json"));
  expect("note: the texts are pairs of \"text\" and \"w\", the first columns; ");
  const RunResult named = EvaluateOut({Path("train.csv"), "--text_columns", "text"});
  ASSERT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(named.err, "");
}

TEST_F(EvaluateCommandTest, ReadsTheColumnsOfTheTraining) {
  std::string rows = "id,title,stars,review\n";
  for (int i = 0; i < 20; ++i)
    rows += i % 2 == 0 ? "1,bad,positive,a good film\n" : "2,good,negative,a bad film\n";
  Write("reviews.csv", rows);
  const RunResult train =
      Train({"--train_file", Path("reviews.csv"), "--text_columns", "review", "--label_column",
             "stars", "--max_steps", "8", "--save_steps", "4"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  const auto evaluate = [&](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> args = {"evaluate", Path(model), Path("reviews.csv"), "--output",
                                     Path("report.json")};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("lathe", args);
  };
  ASSERT_EQ(evaluate("out", {"--text_columns", "review", "--label_column", "stars"}).exit_code, 0);
  const Json expected = ReadJson("report.json");
  const std::string text = "note: the texts are in \"review\"", end = ", as in the training\n";
  for (const char* model : {"out", "out/checkpoint-8"}) {
    const RunResult run = evaluate(model, {});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, text + ", and the labels are in \"stars\"" + end);
    EXPECT_EQ(ReadJson("report.json"), expected);
  }
  const RunResult titles = evaluate("out", {"--text_columns", "title"});
  ASSERT_EQ(titles.exit_code, 0) << titles.err;
  EXPECT_EQ(titles.err, "note: the labels are in \"stars\"" + end);
  EXPECT_NE(ReadJson("report.json")["loss"], expected["loss"]);
  const auto predict = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"predict", Path("out"), "--file", Path("reviews.csv")};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("lathe", args);
  };
  EXPECT_EQ(predict({}).err, text + end);
  EXPECT_EQ(predict({}).out, predict({"--text_columns", "review"}).out);
  EXPECT_NE(predict({}).out, predict({"--text_columns", "title"}).out);
  EXPECT_EQ(predict({"--text_columns", "title"}).err, "");
}

// Without a row of names, the first row stands for them.
TEST_F(EvaluateCommandTest, ReadsTheColumnsOfTheTrainingByNumber) {
  const std::string rows = "a bad film,negative\na good film,positive\na bad film,negative\n";
  Write("train_rows.csv", "the good film,positive\n" + rows + rows);
  const RunResult train = Train({"--train_file", Path("train_rows.csv"), "--text_columns", "1",
                                 "--label_column", "2", "--max_steps", "4"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  Write("dev_rows.csv", rows);
  const RunResult run = EvaluateOut({Path("dev_rows.csv"), "--output", Path("report.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err,
            "note: the texts are in column 1, and the labels are in column 2, as in the "
            "training\n");
  EXPECT_EQ(ReadJson("report.json")["num_samples"], 2);
  const RunResult named = EvaluateOut({Path("dev_rows.csv"), "--text_columns", "1",
                                       "--label_column", "2", "--output", Path("named.json")});
  ASSERT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(named.err, "");
  EXPECT_EQ(ReadJson("named.json"), ReadJson("report.json"));
  const RunResult predict =
      RunProgram("lathe", {"predict", Path("out"), "--file", Path("dev_rows.csv")});
  ASSERT_EQ(predict.exit_code, 0) << predict.err;
  EXPECT_EQ(predict.err, "note: the texts are in column 1, as in the training\n");
  EXPECT_EQ(predict.out,
            RunProgram("lathe", {"predict", Path("out"), "a good film", "a bad film"}).out);
}

TEST_F(EvaluateCommandTest, OtherColumnsThanThoseOfTheTrainingHaveANote) {
  Write("train.csv", "n,review,stars\n1,good,positive\n2,bad,negative\n");
  ASSERT_EQ(
      Train({"--text_columns", "review", "--label_column", "stars", "--max_steps", "2"}).exit_code,
      0);
  const std::string dev = Path("dev.csv");
  const RunResult run = EvaluateOut({dev});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err,
            "note: " + dev +
                " lacks \"review\" and \"stars\" of the training data, so the texts are in "
                "\"sentence\", and the labels are in \"label\"; choose others with "
                "--text_columns and --label_column\n");
  const RunResult predict = RunProgram("lathe", {"predict", Path("out"), "--file", dev});
  ASSERT_EQ(predict.exit_code, 0) << predict.err;
  EXPECT_EQ(predict.err, "note: " + dev +
                             " lacks \"review\" of the training data, so the texts are in "
                             "\"sentence\"; choose others with --text_columns\n");

  Write("out/data_columns.json", "{\"label_column\": \"stars\"}");
  ExpectError(EvaluateOut({dev}), "out/data_columns.json: must have either \"text_columns\" or ");
  ExpectError(RunProgram("lathe", {"predict", Path("out"), "--file", dev}),
              "out/data_columns.json: must have either \"text_columns\" or ");
  const RunResult named =
      EvaluateOut({dev, "--text_columns", "sentence", "--label_column", "label"});
  ASSERT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(named.err, "");
}

TEST_F(EvaluateCommandTest, ARegressionHasItsMetrics) {
  Write("train.csv", "sentence,label\ngood,1.5\nbad,0.5\n");
  ASSERT_EQ(Train({"--max_steps", "2"}).exit_code, 0);
  const RunResult run = EvaluateOut({Path("train.csv"), "--output", Path("report.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json report = ReadJson("report.json");
  EXPECT_EQ(report["problem_type"], "regression");
  EXPECT_NEAR(report["loss"], report["metrics"]["mse"], 1e-6);
  EXPECT_FALSE(report.contains("classes"));
  ExpectError(EvaluateOut({Path("train.csv"), "--errors", Path("errors.tsv")}),
              "--errors is for classifiers", 2);
}

TEST_F(EvaluateCommandTest, MistakesAreReported) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  const std::string dev = Path("dev.csv");
  ExpectError(RunProgram("lathe", {"evaluate"}), "MODEL_DIR is missing", 2);
  ExpectError(EvaluateOut({}), "FILE is missing", 2);
  ExpectError(EvaluateOut({dev, Path("more.csv")}), "more.csv: No such file");
  ExpectError(EvaluateOut({dev, "--bf16", "--fp16"}), "contradict each other", 2);
  ExpectError(EvaluateOut({dev, "--max_seq_length", "1"}), "--max_seq_length must be at least 3",
              2);
  ExpectError(RunProgram("lathe", {"evaluate", Path("nowhere"), dev}), "nowhere");
  const RunResult none = EvaluateOut({Path("none.csv")});
  ExpectError(none, "none.csv: No such file");
  EXPECT_EQ(none.err.find("validation_file"), std::string::npos) << none.err;
  ExpectError(EvaluateOut({Path("out")}), "out: is a folder but FILE must be a file");
  ExpectError(EvaluateOut({dev, "--label_column", "stars"}), "no column \"stars\"");
  Write("odd.csv", "sentence,label\ngood,neutral\n");
  ExpectError(EvaluateOut({Path("odd.csv")}), "odd.csv:2: label \"neutral\" was not seen");
  ExpectError(EvaluateOut({dev, "--output", Path("out")}),
              "is a folder but --output must be a file");
  ExpectError(EvaluateOut({dev, "--output", Path("no/report.json")}), "there is no folder ");
  ExpectError(RunProgram("lathe", {"evaluate", Path("model"), dev}), "model");
}

}  // namespace
}  // namespace lathe
