// Tests --task_name: the columns, labels and metrics of GLUE's tasks.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Json = nlohmann::json;

class GlueTasksTest : public CliTest {
 protected:
  // Writes a training and a validation file with the header and rows that `row(i)` returns.
  template <typename Row>
  void WriteFiles(const std::string& header, const Row& row) const {
    std::string train = header + "\n", dev = header + "\n";
    for (int i = 0; i < 48; ++i) train += row(i) + "\n";
    for (int i = 48; i < 72; ++i) dev += row(i) + "\n";
    Write("train.csv", train);
    Write("dev.csv", dev);
  }
  RunResult TrainTask(const std::string& task, const Args& more = {}) const {
    Args args = {"--task_name", task, "--do_eval", "--max_steps", "12", "--overwrite_output_dir"};
    args.insert(args.end(), more.begin(), more.end());
    return Train(args);
  }
  Json Metrics() const { return ReadJson("out/eval_results.json"); }
  static std::string Word(int i) { return i % 3 == 0 ? "good" : i % 3 == 1 ? "bad" : "dull"; }
};

TEST_F(GlueTasksTest, PairsHaveGluesLabelsAndTheCombinedScore) {
  WriteFiles("idx,label,sentence2,sentence1", [](int i) {
    const bool equal = i % 2 == 0;
    return std::to_string(i) + (equal ? ",equivalent," : ",not_equivalent,") +
           Word(equal ? i : i + 1) + " film," + Word(i) + " film";
  });
  const RunResult run = TrainTask(
      "mrpc", {"--eval_strategy", "steps", "--eval_steps", "4", "--metric_for_best_model",
               "combined_score", "--load_best_model_at_end", "--metric_name", "combined_score"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("texts       sentence1 and sentence2\n"), std::string::npos) << run.out;
  // The classes have the numbers that run_glue gives them, whatever the order of their names.
  EXPECT_EQ(ReadJson("out/config.json").at("id2label"),
            Json({{"0", "not_equivalent"}, {"1", "equivalent"}}));
  const Json metrics = Metrics(), report = ReadJson("out/eval_report.json");
  const double accuracy = metrics.at("eval_accuracy"), f1 = metrics.at("eval_f1");
  EXPECT_DOUBLE_EQ(metrics.at("eval_combined_score"), (accuracy + f1) / 2);
  const Json& of_equivalent = report.at("classes").at(1).at("f1");
  EXPECT_DOUBLE_EQ(f1, of_equivalent.is_null() ? 0.0 : of_equivalent.get<double>());
  EXPECT_EQ(report.at("metrics").at("combined_score"), metrics.at("eval_combined_score"));
  EXPECT_NEAR(ReadJson("out/trainer_state.json").at("best_metric"),
              metrics.at("eval_combined_score"), 1e-12);
}

TEST_F(GlueTasksTest, ScoresHaveTheCombinedScoreOfCorrelations) {
  WriteFiles("sentence1,sentence2,label", [](int i) {
    return Word(i) + " film," + Word(i * i) + " plot," + std::to_string(i % 6);  // whole numbers
  });
  const RunResult run = TrainTask("stsb", {"--learning_rate", "1e-3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json metrics = Metrics();
  const double pearson = metrics.at("eval_pearson"), spearman = metrics.at("eval_spearmanr");
  EXPECT_DOUBLE_EQ(metrics.at("eval_combined_score"), (pearson + spearman) / 2);
  EXPECT_TRUE(metrics.contains("eval_mse"));
}

TEST_F(GlueTasksTest, OneSentenceHasTheMetricOfItsTask) {
  WriteFiles("sentence,label", [](int i) {
    return Word(i) + " film," + (i % 3 == 0 ? "acceptable" : "unacceptable");
  });
  ASSERT_EQ(TrainTask("cola", {"--metric_name", "matthews_correlation"}).exit_code, 0);
  EXPECT_EQ(ReadJson("out/config.json").at("label2id").at("acceptable"), 1);
  EXPECT_TRUE(Metrics().contains("eval_matthews_correlation"));
  EXPECT_FALSE(Metrics().contains("eval_combined_score"));
  // The task has no such metric.
  ExpectError(
      TrainTask("cola", {"--eval_strategy", "epoch", "--metric_for_best_model", "combined_score",
                         "--load_best_model_at_end"}),
      "metric_for_best_model must be one of accuracy, f1, loss, matthews_correlation but is "
      "\"combined_score\"",
      2);
}

TEST_F(GlueTasksTest, LabelsWithOtherNamesKeepTheirOrder) {
  WriteFiles("sentence,label",
             [](int i) { return Word(i) + " film," + (i % 3 == 0 ? "yes" : "no"); });
  ASSERT_EQ(TrainTask("sst2").exit_code, 0);
  EXPECT_EQ(ReadJson("out/config.json").at("id2label"), Json({{"0", "no"}, {"1", "yes"}}));
}

}  // namespace
}  // namespace lathe
