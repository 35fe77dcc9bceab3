#include "lathe/train/evaluation_results.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// A file of sentences with their labels, and the dataset as the loader makes it of the file.
class EvaluationResultsTest : public testing::Test {
 protected:
  EvaluationResultsTest() {
    dataset_.num_labels = 2;
    dataset_.has_labels = true;
    dataset_.classes = {0, 1, 0, 1};
    dataset_.offsets = {0, 0, 0, 0, 0};
    Write("text,label\n\"one,\ntwo\",a\n\nthree,b\n\"a\ttab\",a\nfour,b\n");
  }
  ~EvaluationResultsTest() override {
    for (const std::string& path : {path_, other_path_}) std::filesystem::remove(path);
  }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  const std::string path_ = testing::TempDir() + "/evaluation_results_test.csv";
  const std::string other_path_ = testing::TempDir() + "/evaluation_results_test.jsonl";
  RowSource source_{.split = {.files = {path_}}, .columns = {.first = "text", .second = ""}};
  TokenizedDataset dataset_;
  LabelSet labels_ = LabelSet::Classes({"a", "b"});
};

TEST_F(EvaluationResultsTest, ATaskOfGlueAddsItsMetrics) {
  const Evaluation evaluation{.logits = {0, 1, 0, 1, 1, 0, 0, 1}};  // sample 0 is wrong
  const nlohmann::json plain = EvalMetrics(evaluation, dataset_);
  EXPECT_FALSE(plain.contains("eval_combined_score"));
  nlohmann::json mrpc = EvalMetrics(evaluation, dataset_, "mrpc");
  EXPECT_DOUBLE_EQ(mrpc.at("eval_combined_score"), (0.75 + 0.8) / 2);
  mrpc.erase("eval_combined_score");
  EXPECT_EQ(mrpc.size(), plain.size());
  for (const char* name : {"eval_accuracy", "eval_f1", "eval_matthews_correlation"})
    EXPECT_EQ(mrpc.at(name), plain.at(name)) << name;
  EXPECT_EQ(ResultsOf(evaluation, dataset_, labels_, "mrpc").json.at("metrics").size(), 4u);
  EXPECT_EQ(MetricNames(LabelKind::kSingleLabel, 2, "qqp"),
            (std::vector<std::string>{"accuracy", "combined_score", "f1", "loss",
                                      "matthews_correlation"}));
  EXPECT_EQ(MetricNames(LabelKind::kRegression, 1, "stsb"),
            (std::vector<std::string>{"combined_score", "loss", "mse", "pearson", "spearmanr"}));
  EXPECT_EQ(MetricNames(LabelKind::kSingleLabel, 2, "cola"),
            MetricNames(LabelKind::kSingleLabel, 2));
}

TEST_F(EvaluationResultsTest, JoinedColumnsAreOneText) {
  source_.columns.first = "text + label";
  source_.options.text_column_names = {"text", "label"};
  source_.options.text_column_delimiter = "/";
  const Evaluation evaluation{.logits = {1, 0, 0, 1, 0, 3, 0, 1}};
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_),
            "line\tlabel\tprediction\tprobability\ttext + label\n"
            "6\ta\tb\t0.952574\ta tab/a\n");
}

TEST_F(EvaluationResultsTest, ErrorsHaveLineAndText) {
  // Samples 0 and 2 are wrong, the latter more surely.
  const Evaluation evaluation{.logits = {0, 1, 0, 1, 0, 3, 0, 1}};
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_),
            "line\tlabel\tprediction\tprobability\ttext\n"
            "6\ta\tb\t0.952574\ta tab\n"
            "2\ta\tb\t0.731059\tone, two\n");
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_, /*most_errors=*/1),
            "line\tlabel\tprediction\tprobability\ttext\n"
            "6\ta\tb\t0.952574\ta tab\n");
}

TEST_F(EvaluationResultsTest, ErrorsOfSeveralFilesNameTheirs) {
  Write("text,label\none,a\n\ntwo,b\n");
  std::ofstream(other_path_) << "{\"label\": \"a\", \"text\": \"three\"}\n"
                                "{\"text\": \"four\", \"label\": \"b\"}\n";
  source_.split.files.push_back(other_path_);
  const Evaluation evaluation{.logits = {1, 0, 1, 0, 0, 1, 3, 0}};  // only sample 0 is right
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_),
            "file\tline\tlabel\tprediction\tprobability\ttext\n" + other_path_ +
                "\t2\tb\ta\t0.952574\tfour\n" + path_ + "\t4\tb\ta\t0.731059\ttwo\n" + other_path_ +
                "\t1\ta\tb\t0.731059\tthree\n");
}

// An array may be one line.
TEST_F(EvaluationResultsTest, ErrorsOfAnArrayHaveTheNumberOfTheirElement) {
  Write("text,label\none,a\n\ntwo,b\n");
  const std::string array = testing::TempDir() + "/evaluation_results_test.json";
  std::ofstream(array) << "[{\"label\":\"a\",\"text\":\"three\"},"
                          "{\"text\":\"four\",\"label\":\"b\"}]";
  source_.split.files.push_back(array);
  const Evaluation evaluation{.logits = {1, 0, 1, 0, 0, 1, 3, 0}};  // only sample 0 is right
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_),
            "file\tline\telement\tlabel\tprediction\tprobability\ttext\n" + array +
                "\t1\t2\tb\ta\t0.952574\tfour\n" + path_ + "\t4\t\tb\ta\t0.731059\ttwo\n" + array +
                "\t1\t1\ta\tb\t0.731059\tthree\n");
  std::filesystem::remove(array);
}

TEST_F(EvaluationResultsTest, WithoutErrorsNothingIsRead) {
  std::filesystem::remove(path_);
  const Evaluation evaluation{.logits = {1, 0, 0, 1, 1, 0, 0, 1}};
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_),
            "line\tlabel\tprediction\tprobability\ttext\n");
}

TEST_F(EvaluationResultsTest, AFileThatHasChangedIsReported) {
  const Evaluation evaluation{.logits = {1, 0, 0, 1, 1, 0, 1, 0}};
  EXPECT_EQ(ErrorTable(evaluation, dataset_, labels_, source_).substr(39),
            "7\tb\ta\t0.731059\tfour\n");
  Write("text,label\none,a\n");
  EXPECT_THROW(ErrorTable(evaluation, dataset_, labels_, source_), Error);
  Write("other,label\none,a\none,a\none,a\none,a\n");
  EXPECT_THROW(ErrorTable(evaluation, dataset_, labels_, source_), Error);
  std::filesystem::remove(path_);
  EXPECT_THROW(ErrorTable(evaluation, dataset_, labels_, source_), Error);
}

TEST_F(EvaluationResultsTest, SeveralLabelsNameAllOfARow) {
  dataset_.kind = LabelKind::kMultiLabel;
  dataset_.classes = {};
  dataset_.scores = {1, 1, 0, 0, 0, 1, 1, 0};
  const Evaluation evaluation{.logits = {-2, -1, -1, -1, 1, 2, 1, -1}, .loss = 0.5};
  EXPECT_EQ(ErrorTable(evaluation, dataset_, LabelSet::MultiLabel({"a", "b"}), source_),
            "line\tlabel\tprediction\tprobability\ttext\n"
            "2\t[\"a\",\"b\"]\t[]\t0.880797\tone, two\n"
            "6\t[\"b\"]\t[\"a\",\"b\"]\t0.731059\ta tab\n");
  // A comma or a tab in a name makes no other label of it.
  const std::string table =
      ErrorTable(evaluation, dataset_, LabelSet::MultiLabel({"a,\"b", "c\td"}), source_);
  EXPECT_NE(table.find("\n2\t[\"a,\\\"b\",\"c\\td\"]\t[]\t"), std::string::npos) << table;
  const EvaluationResults results =
      ResultsOf(evaluation, dataset_, LabelSet::MultiLabel({"a", "b"}));
  EXPECT_EQ(results.json["problem_type"], "multi_label_classification");
  EXPECT_EQ(results.json["loss"], 0.5);
  EXPECT_EQ(results.json["metrics"]["accuracy"], 0.5);
  EXPECT_EQ(results.json["classes"][1]["label"], "b");
  EXPECT_EQ(results.json["classes"][1]["recall"], 0.5);
}

TEST_F(EvaluationResultsTest, ARegressionHasItsMetricsOnly) {
  dataset_.kind = LabelKind::kRegression;
  dataset_.num_labels = 1;
  dataset_.classes = {};
  dataset_.scores = {1, 2, 3, 4};
  const EvaluationResults results =
      ResultsOf({.logits = {1, 2, 3, 5}, .loss = 0.25}, dataset_, LabelSet::Regression());
  EXPECT_FALSE(results.classes);
  EXPECT_EQ(results.json["metrics"]["mse"], 0.25);
  EXPECT_FALSE(results.json.contains("classes"));
}

}  // namespace
}  // namespace lathe
