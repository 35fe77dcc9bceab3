// finetune without --do_train: it reads the columns of the training that made the model.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;
using Json = nlohmann::json;

const char kReviewsAndStars[] =
    "note: the texts are in \"review\", and the labels are in \"stars\", as in the training\n";

class ColumnsOfTrainingTest : public LaunchedTest {
 protected:
  // Writes reviews.csv, whose columns stand in no usual order and have no usual names.
  void SetUp() override {
    LaunchedTest::SetUp();
    std::string rows = "id,title,stars,review\n";
    for (int i = 0; i < 20; ++i)
      rows += i % 2 == 0 ? "1,bad,positive,a good film\n" : "2,good,negative,a bad film\n";
    Write("reviews.csv", rows);
  }
  // Trains a model on the file's columns, into the folder `out`.
  void TrainOn(const std::string& file, const Args& columns) const {
    Args args = {"--train_file", Path(file), "--max_steps", "8"};
    args.insert(args.end(), columns.begin(), columns.end());
    const RunResult run = Train(args);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    ASSERT_EQ(run.err, "");
  }
  void TrainOnReviews() const {
    TrainOn("reviews.csv", {"--text_columns", "review", "--label_column", "stars"});
  }
  // Returns the arguments of a run that evaluates, predicts or both, but does not train.
  Args Use(const std::string& out, const Args& more) const {
    Args args = {"--model_name_or_path", Path("out"), "--output_dir", Path(out),
                 "--num_threads",        "1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  RunResult Run(const std::string& out, const Args& more, const RunOptions& options = {}) const {
    return RunProgram("finetune", Use(out, more), options);
  }
  // Runs into the folder `out`, and expects this on standard error.
  void ExpectNote(const std::string& out, const Args& more, const std::string& note) const {
    const RunResult run = Run(out, more);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, note);
  }
  Args Eval(const std::string& file) const {
    return {"--do_eval", "--validation_file", Path(file)};
  }
  Args Predict(const std::string& file) const {
    return {"--do_predict", "--test_file", Path(file)};
  }
  static Args With(Args a, const Args& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};

TEST_F(ColumnsOfTrainingTest, AreFoundByName) {
  TrainOnReviews();
  const Args named = {"--text_columns", "review", "--label_column", "stars"};
  const Args both = With(Eval("reviews.csv"), Predict("reviews.csv"));
  ExpectNote("named", With(both, named), "");
  const Json expected = ReadJson("named/eval_report.json");
  for (const std::string& cache : {std::string("none"), Path("cache"), Path("cache")}) {
    fs::remove_all(Path("both"));
    ExpectNote("both", With(both, {"--dataset_cache", cache}), kReviewsAndStars);
    EXPECT_EQ(ReadJson("both/eval_report.json"), expected);
    EXPECT_EQ(Read("both/predict_results.tsv"), Read("named/predict_results.tsv"));
    EXPECT_EQ(Read("both/eval_errors.tsv"), Read("named/eval_errors.tsv"));
  }
  ExpectNote("eval", Eval("reviews.csv"), kReviewsAndStars);
  EXPECT_EQ(ReadJson("eval/eval_report.json"), expected);
  // Predictions need no labels.
  Write("texts.csv", "title,review\nbad,a good film\ngood,a bad film\n");
  ExpectNote("predict", Predict("texts.csv"),
             "note: the texts are in \"review\", as in the training\n");
  ExpectNote("predict_named", With(Predict("texts.csv"), {"--text_columns", "review"}), "");
  EXPECT_EQ(Read("predict/predict_results.tsv"), Read("predict_named/predict_results.tsv"));
}

TEST_F(ColumnsOfTrainingTest, AreThoseOfTheCommandEvaluate) {
  TrainOn("reviews.csv", {"--text_column_names", "title,review", "--text_column_delimiter", " ! ",
                          "--label_column", "stars"});
  const RunResult run =
      RunProgram("lathe", {"evaluate", Path("out"), Path("reviews.csv"), "--num_threads", "1",
                           "--output", Path("report.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err,
            "note: the texts are \"title\" and \"review\" joined, and the labels are in \"stars\", "
            "as in the training\n");
  ExpectNote("eval", Eval("reviews.csv"), run.err);
  const Json report = ReadJson("eval/eval_report.json"), expected = ReadJson("report.json");
  EXPECT_EQ(report["confusion_matrix"], expected["confusion_matrix"]);
  EXPECT_NEAR(report["loss"], expected["loss"], 1e-6);
}

TEST_F(ColumnsOfTrainingTest, AreFoundByNumber) {
  const std::string rows = "a bad film,negative\na good film,positive\na bad film,negative\n";
  Write("train_rows.csv", "the good film,positive\n" + rows + rows);
  TrainOn("train_rows.csv", {"--text_columns", "1", "--label_column", "2"});
  Write("dev_rows.csv", rows);
  ExpectNote("eval", Eval("dev_rows.csv"),
             "note: the texts are in column 1, and the labels are in column 2, as in the "
             "training\n");
  EXPECT_EQ(ReadJson("eval/eval_results.json")["eval_samples"], 2);
  ExpectNote("predict", Predict("dev_rows.csv"),
             "note: the texts are in column 1, as in the training\n");
  const auto lines = Read("predict/predict_results.tsv");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);  // with the row of names
}

TEST_F(ColumnsOfTrainingTest, HaveOneNoteInSeveralProcesses) {
  TrainOnReviews();
  const Args both = With(Eval("reviews.csv"), Predict("reviews.csv"));
  ExpectNote("one", both, kReviewsAndStars);
  const RunResult two =
      Launch(2, With({"apps/finetune/finetune", "--disable_tqdm"}, Use("two", both)));
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.err, kReviewsAndStars);
  EXPECT_EQ(ReadJson("two/eval_report.json")["confusion_matrix"],
            ReadJson("one/eval_report.json")["confusion_matrix"]);
  EXPECT_NEAR(ReadJson("two/eval_results.json")["eval_loss"],
              ReadJson("one/eval_results.json")["eval_loss"], 1e-5);
}

TEST_F(ColumnsOfTrainingTest, YieldToOptions) {
  TrainOnReviews();
  ExpectNote("all", Eval("reviews.csv"), kReviewsAndStars);
  const double loss = ReadJson("all/eval_results.json")["eval_loss"];
  const std::string labels = "note: the labels are in \"stars\", as in the training\n",
                    texts = "note: the texts are in \"review\", as in the training\n";
  ExpectNote("title", With(Eval("reviews.csv"), {"--text_columns", "title"}), labels);
  EXPECT_NE(ReadJson("title/eval_results.json")["eval_loss"], loss);
  ExpectNote("other_name", With(Eval("reviews.csv"), {"--label_column_name", "stars"}), texts);
  EXPECT_EQ(ReadJson("other_name/eval_results.json")["eval_loss"], loss);
  // A column that a file of arguments names was named, too.
  Write("arguments.json", DumpJson(Json({{"model_name_or_path", Path("out")},
                                         {"validation_file", Path("reviews.csv")},
                                         {"do_eval", true},
                                         {"text_columns", Json::array({"review"})},
                                         {"output_dir", Path("file")}})));
  const RunResult file = RunProgram("finetune", {Path("arguments.json"), "--num_threads", "1"});
  ASSERT_EQ(file.exit_code, 0) << file.err;
  EXPECT_EQ(file.err, labels);
  EXPECT_EQ(ReadJson("file/eval_results.json")["eval_loss"], loss);
  // The label that is named is the one that must be there.
  ExpectError(Run("label", With(Eval("reviews.csv"), {"--label_column", "label"})),
              "reviews.csv: no column \"label\"");
  // A task of GLUE has columns of its own, and its label is called "label".
  Write("task.csv",
        "sentence,label,review,stars\na good film,positive,bad,negative\n"
        "a bad film,negative,good,positive\n");
  ExpectNote("task", With(Eval("task.csv"), {"--task_name", "sst2"}), "");
  ExpectNote("task_named",
             With(Eval("task.csv"), {"--text_columns", "sentence", "--label_column", "label"}), "");
  EXPECT_EQ(ReadJson("task/eval_results.json")["eval_loss"],
            ReadJson("task_named/eval_results.json")["eval_loss"]);
}

TEST_F(ColumnsOfTrainingTest, ThatTheFileLacksHaveANote) {
  TrainOnReviews();
  const std::string dev = Path("dev.csv"), test = Path("test.csv");
  ExpectNote("eval", Eval("dev.csv"),
             "note: " + dev +
                 " lacks \"review\" and \"stars\" of the training data, so the texts are in "
                 "\"sentence\", and the labels are in \"label\"; choose others with "
                 "--text_columns and --label_column\n");
  ExpectNote("named",
             With(Eval("dev.csv"), {"--text_columns", "sentence", "--label_column", "label"}), "");
  EXPECT_EQ(ReadJson("eval/eval_report.json"), ReadJson("named/eval_report.json"));
  ExpectNote("predict", Predict("test.csv"),
             "note: " + test +
                 " lacks \"review\" of the training data, so the texts are in \"sentence\"; choose "
                 "others with --text_columns\n");
  // The label's column may have any number.
  Write("other.csv", "kind,text\nnegative,a bad film\npositive,a good film\n");
  ExpectNote("number", With(Eval("other.csv"), {"--label_column", "1"}),
             "note: " + Path("other.csv") +
                 " lacks \"review\" of the training data, so the texts are in \"text\"; choose "
                 "others with --text_columns\n");
  // A folder that Transformers or an older Lathe has written.
  fs::remove(Path("out/data_columns.json"));
  ExpectNote("old", Eval("dev.csv"), "");
  EXPECT_EQ(ReadJson("old/eval_report.json"), ReadJson("named/eval_report.json"));
  ExpectError(Run("old_reviews", Eval("reviews.csv")), "reviews.csv: no column \"label\"");
}

TEST_F(ColumnsOfTrainingTest, AreNotSoughtInAPipe) {
  TrainOnReviews();
  fs::create_symlink("/dev/stdin", Path("piped.csv"));
  const RunResult run = Run("piped", Eval("piped.csv"), {.input = Read("dev.csv")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "note: " + Path("piped.csv") +
                         " can be read only once, so the columns of the training are not sought "
                         "in it\n");
  const RunResult named =
      Run("piped_named",
          With(Eval("piped.csv"), {"--text_columns", "sentence", "--label_column", "label"}),
          {.input = Read("dev.csv")});
  ASSERT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(named.err, "");
  EXPECT_EQ(ReadJson("piped/eval_report.json"), ReadJson("piped_named/eval_report.json"));
}

TEST_F(ColumnsOfTrainingTest, MistakesAreOneLineEach) {
  TrainOnReviews();
  ExpectError(Run("eval", Eval("none.csv")), "none.csv: No such file");
  ExpectError(Run("eval", With(Eval("reviews.csv"), {"--text_columns", "stars"})),
              "column \"stars\" is the label and cannot be a text");
  Write("out/data_columns.json", "{\"label_column\": \"stars\"}");
  ExpectError(Run("eval", Eval("reviews.csv")),
              "out/data_columns.json: must have either \"text_columns\" or ");
  // Nobody reads it where all columns are named, or in a training.
  const Args named = {"--text_columns", "review", "--label_column", "stars"};
  ExpectNote("named", With(Eval("reviews.csv"), named), "");
  const RunResult train = Train(
      {"--model_name_or_path", Path("out"), "--output_dir", Path("next"), "--max_steps", "1"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  EXPECT_EQ(train.err, "");
  EXPECT_EQ(ReadJson("next/data_columns.json"),
            Json({{"text_columns", {"sentence"}}, {"label_column", "label"}}));
}

}  // namespace
}  // namespace lathe
