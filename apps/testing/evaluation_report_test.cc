// What an evaluation says about classes, as users of `finetune` see it.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Table = std::vector<std::map<std::string, std::string>>;

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// Reads a table with a header and tabs.
Table ReadTable(const std::string& text) {
  const std::vector<std::string> lines = Split(text, '\n');
  Table table;
  const std::vector<std::string> names = lines.empty() ? lines : Split(lines[0], '\t');
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> cells = Split(lines[i], '\t');
    table.emplace_back();
    for (size_t c = 0; c < cells.size(); ++c) table.back()[names.at(c)] = cells[c];
  }
  return table;
}

class EvaluationReportTest : public LaunchedTest {};

TEST_F(EvaluationReportTest, ReportAndErrorsAgreeWithThePredictions) {
  const RunResult run = Train({"--do_eval", "--do_predict", "--test_file", Path("dev.csv"),
                               "--num_train_epochs", "1", "--learning_rate", "1e-3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::vector<std::string> rows = Split(Read("dev.csv"), '\n');
  const Table predictions = ReadTable(Read("out/predict_results.tsv"));
  ASSERT_EQ(rows.size(), predictions.size() + 1);

  std::map<std::string, std::map<std::string, int>> matrix;
  std::map<int, double> wrong;  // the probabilities of wrong predictions, by line
  double loss = 0;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const std::string label = rows[i + 1].substr(rows[i + 1].rfind(',') + 1);
    const std::string prediction = predictions[i].at("prediction");
    ++matrix[label][prediction];
    loss -= std::log(std::stod(predictions[i].at("probability_" + label)));
    if (label != prediction)
      wrong[static_cast<int>(i) + 2] = std::stod(predictions[i].at("probability_" + prediction));
  }
  ASSERT_GE(wrong.size(), 2u) << "the test needs a model that errs";

  const Json report = ReadJson("out/eval_report.json");
  EXPECT_EQ(report["problem_type"], "single_label_classification");
  EXPECT_EQ(report["num_samples"], predictions.size());
  EXPECT_NEAR(report["log_loss"], loss / static_cast<double>(predictions.size()), 1e-5);
  EXPECT_NEAR(report["loss"], report["log_loss"], 1e-5);
  EXPECT_EQ(report["metrics"]["accuracy"], ReadJson("out/eval_results.json")["eval_accuracy"]);
  EXPECT_EQ(report["accuracy"], report["metrics"]["accuracy"]);
  const std::vector<std::string> names = {"negative", "positive"};
  for (size_t a = 0; a < 2; ++a) {
    EXPECT_EQ(report["classes"][a]["label"], names[a]);
    for (size_t b = 0; b < 2; ++b)
      EXPECT_EQ(report["confusion_matrix"][a][b], matrix[names[a]][names[b]]);
  }
  EXPECT_EQ(report["classes"][1]["f1"], report["metrics"]["f1"]);
  EXPECT_FALSE(report["classes"][0].contains("precision_recall_curve"));
  const Json& curve = report["classes"][1]["precision_recall_curve"];
  ASSERT_GE(curve["recall"].size(), 3u);
  EXPECT_EQ(curve["thresholds"].size() + 1, curve["recall"].size());
  EXPECT_EQ(curve["recall"].front(), 1);
  EXPECT_NEAR(curve["precision"].front(),
              report["classes"][1]["support"].get<double>() / report["num_samples"].get<double>(),
              1e-9);

  const Table errors = ReadTable(Read("out/eval_errors.tsv"));
  ASSERT_EQ(errors.size(), wrong.size());
  for (size_t i = 0; i < errors.size(); ++i) {
    const int line = std::stoi(errors[i].at("line"));
    const double probability = std::stod(errors[i].at("probability"));
    EXPECT_NEAR(probability, wrong.at(line), 1e-6);
    EXPECT_LE(probability, i > 0 ? std::stod(errors[i - 1].at("probability")) : 1.0);
    EXPECT_NE(errors[i].at("label"), errors[i].at("prediction"));
    const std::string row = rows[static_cast<size_t>(line) - 1];
    EXPECT_EQ(row.substr(row.rfind(',') + 1), errors[i].at("label"));
    EXPECT_NE(row.find(errors[i].at("sentence")), std::string::npos) << row;
  }

  EXPECT_NE(run.out.find("\n  weighted mean "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("\nconfusion, predicted as "), std::string::npos) << run.out;
}

TEST_F(EvaluationReportTest, ValuesOfAMissingClassAreUndefined) {
  Write("train.csv", "sentence,label\ngood,a\nbad,b\nfilm,c\n");
  Write("dev.csv", "sentence,label\ngood,a\nbad,b\n");
  const RunResult run = Train({"--do_eval", "--max_steps", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json report = ReadJson("out/eval_report.json");
  EXPECT_TRUE(report["classes"][2]["recall"].is_null()) << report;
  EXPECT_TRUE(report["classes"][2]["roc_auc"].is_null());
  EXPECT_TRUE(report["classes"][2].at("precision_recall_curve").is_null());
  EXPECT_TRUE(report["classes"][1]["precision_recall_curve"].is_object());
  EXPECT_NE(Read("out/report.html").find("Undefined, since the data have no sample: c."),
            std::string::npos);
  EXPECT_EQ(report["classes"][2]["support"], 0);
  EXPECT_TRUE(report["roc_auc"].is_number());
  EXPECT_NE(run.out.find("undefined"), std::string::npos) << run.out;
}

TEST_F(EvaluationReportTest, SeveralLabelsAtOnce) {
  Write("train.jsonl",
        "{\"text\": \"good film\", \"label\": [\"fine\"]}\n"
        "{\"text\": \"bad film\", \"label\": [\"poor\", \"long\"]}\n");
  const RunResult run = Train({"--train_file", Path("train.jsonl"), "--validation_file",
                               Path("train.jsonl"), "--do_eval", "--max_steps", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json report = ReadJson("out/eval_report.json");
  EXPECT_EQ(report["problem_type"], "multi_label_classification");
  ASSERT_EQ(report["classes"].size(), 3u);
  const Json& confusion = report["classes"][0]["confusion"];
  EXPECT_EQ(confusion["true_positives"].get<int>() + confusion["false_negatives"].get<int>(), 1);
  EXPECT_FALSE(report.contains("confusion_matrix"));
  EXPECT_TRUE(Exists("out/eval_errors.tsv"));
}

TEST_F(EvaluationReportTest, ARegressionHasNone) {
  Write("train.csv", "sentence,label\ngood,1.5\nbad,0.5\n");
  const RunResult run =
      Train({"--validation_file", Path("train.csv"), "--do_eval", "--max_steps", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_FALSE(Exists("out/eval_report.json"));
  EXPECT_FALSE(Exists("out/eval_errors.tsv"));
  EXPECT_EQ(run.out.find("classes  "), std::string::npos) << run.out;
}

TEST_F(EvaluationReportTest, SeveralProcessesReportAllSamples) {
  const std::vector<std::string> more = {"--do_eval", "--max_steps", "4",
                                         "--per_device_eval_batch_size", "3"};
  ASSERT_EQ(Launch(1, Finetune("one", more)).exit_code, 0);
  const std::vector<std::string> evaluate = {"apps/finetune/finetune",
                                             "--model_name_or_path",
                                             Path("one"),
                                             "--do_eval",
                                             "--per_device_eval_batch_size",
                                             "3",
                                             "--validation_file",
                                             Path("dev.csv"),
                                             "--output_dir",
                                             Path("three")};
  const RunResult run = Launch(3, evaluate);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json one = ReadJson("one/eval_report.json"), three = ReadJson("three/eval_report.json");
  EXPECT_EQ(three["confusion_matrix"], one["confusion_matrix"]);
  EXPECT_EQ(three["num_samples"], one["num_samples"]);
  EXPECT_NEAR(three["log_loss"], one["log_loss"], 1e-6);
  EXPECT_NEAR(three["roc_auc"], one["roc_auc"], 1e-6);
  EXPECT_EQ(run.out.find("weighted mean"), run.out.rfind("weighted mean")) << run.out;
}

TEST_F(EvaluationReportTest, OldReportsLeaveWithTheirModel) {
  ASSERT_EQ(Train({"--do_eval", "--max_steps", "1"}).exit_code, 0);
  ASSERT_TRUE(Exists("out/eval_report.json"));
  ASSERT_EQ(Train({"--max_steps", "1", "--overwrite_output_dir"}).exit_code, 0);
  EXPECT_FALSE(Exists("out/eval_report.json"));
  EXPECT_FALSE(Exists("out/eval_errors.tsv"));
  std::filesystem::create_directories(Path("other/eval_errors.tsv"));
  ExpectError(Train({"--do_eval", "--max_steps", "1", "--output_dir", Path("other"),
                     "--overwrite_output_dir"}),
              "other/eval_errors.tsv: is a folder but must be a file of the model");
}

}  // namespace
}  // namespace lathe
