// tests/golden/make_metrics.py made the expected values, with scikit-learn 1.9.1.
#include "lathe/data/metrics/evaluation_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Compares what `expected` holds with the same places of `actual`: numbers to 1e-6, all else
// exactly. Counts what it compared.
int ExpectPart(const Json& actual, const Json& expected, const std::string& where) {
  int compared = 0;
  if (expected.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      EXPECT_TRUE(actual.contains(key)) << where << "/" << key;
      if (actual.contains(key)) compared += ExpectPart(actual[key], value, where + "/" + key);
    }
  } else if (expected.is_array()) {
    EXPECT_EQ(actual.size(), expected.size()) << where;
    for (size_t i = 0; i < expected.size() && i < actual.size(); ++i)
      compared += ExpectPart(actual[i], expected[i], where + "/" + std::to_string(i));
  } else if (expected.is_number_float() && actual.is_number()) {
    EXPECT_NEAR(actual.get<double>(), expected.get<double>(), 1e-6) << where;
    ++compared;
  } else {
    EXPECT_EQ(actual, expected) << where;
    ++compared;
  }
  return compared;
}

std::vector<std::string> Names(int64_t n) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < n; ++i) names.push_back("class " + std::to_string(i));
  return names;
}

TEST(EvaluationReportTest, AgreesWithScikitLearn) {
  const Json cases = ParseJson(ReadFile("tests/golden/metrics.json"));
  ASSERT_EQ(cases.size(), 9u);
  int curves = 0;
  for (const Json& one : cases) {
    const bool several = one.at("kind") == "multi";
    const Predictions predictions{
        .kind = several ? LabelKind::kMultiLabel : LabelKind::kSingleLabel,
        .num_labels = one.at("num_labels"),
        .logits = one.at("logits"),
        .classes = one.value("classes", std::vector<int64_t>{}),
        .scores = one.value("scores", std::vector<float>{})};
    const Json json = ReportJson(MakeEvaluationReport(predictions), Names(predictions.num_labels));
    const int compared = ExpectPart(json, one.at("expected"), one.at("name"));
    EXPECT_GT(compared, 30);
    for (const Json& label : one.at("expected").at("classes"))
      curves += label.contains("precision_recall_curve");
  }
  EXPECT_EQ(curves, 7);  // of two, three and three labels, without the first of two classes
}

TEST(EvaluationReportTest, SaysUndefinedInsteadOfZero) {
  // Class 1 has no sample, and class 2 is never predicted.
  const Predictions predictions{
      .num_labels = 3, .logits = {3, 1, 0, 1, 2, 0, 2, 1, 0}, .classes = {0, 0, 2}};
  const EvaluationReport report = MakeEvaluationReport(predictions);
  EXPECT_FALSE(report.labels[1].scores.recall);
  EXPECT_EQ(report.labels[1].scores.precision, 0.0);
  EXPECT_FALSE(report.labels[1].ranking.roc_auc);
  EXPECT_FALSE(report.labels[1].ranking.average_precision);
  EXPECT_FALSE(report.labels[1].curve);
  EXPECT_TRUE(report.labels[2].curve);
  EXPECT_FALSE(report.labels[2].scores.precision);
  EXPECT_EQ(report.labels[2].scores.recall, 0.0);
  EXPECT_EQ(report.labels[2].scores.f1, 0.0);
  EXPECT_DOUBLE_EQ(*report.macro.precision, 0.25);  // of classes 0 and 1: 1 / 2 and 0
  EXPECT_DOUBLE_EQ(*report.macro.recall, 0.25);     // of classes 0 and 2: 1 / 2 and 0
  const Json json = ReportJson(report, {"a", "b", "c"});
  EXPECT_TRUE(json["classes"][1]["recall"].is_null());
  EXPECT_TRUE(json["classes"][1].at("precision_recall_curve").is_null());
  EXPECT_EQ(json["classes"][1]["label"], "b");
  EXPECT_EQ(json["confusion_matrix"], ParseJson("[[1,1,0],[0,0,0],[1,0,0]]"));
}

TEST(EvaluationReportTest, WithoutSamplesAllIsUndefined) {
  for (const LabelKind kind : {LabelKind::kSingleLabel, LabelKind::kMultiLabel}) {
    const EvaluationReport report = MakeEvaluationReport({.kind = kind, .num_labels = 2});
    EXPECT_EQ(report.num_samples, 0);
    EXPECT_FALSE(report.accuracy || report.log_loss || report.roc_auc || report.macro.f1 ||
                 report.micro.f1 || report.weighted.f1 || report.average_precision);
    EXPECT_FALSE(report.calibration.Error());
  }
}

TEST(EvaluationReportTest, LogLossIsNotClipped) {
  // The right class has a probability of exp(-100), which scikit-learn would raise to 2.2e-16.
  const EvaluationReport report =
      MakeEvaluationReport({.logits = {100, 0}, .classes = {1}, .scores = {}});
  EXPECT_NEAR(*report.log_loss, 100, 1e-9);
  const EvaluationReport several = MakeEvaluationReport(
      {.kind = LabelKind::kMultiLabel, .num_labels = 1, .logits = {800, -800}, .scores = {0, 1}});
  EXPECT_NEAR(*several.log_loss, 800, 1e-9);
}

TEST(EvaluationReportTest, ManyClassesHaveCellsInPlaceOfAMatrix) {
  Predictions predictions{
      .num_labels = 101, .logits = std::vector<float>(202), .classes = {5, 100}};
  predictions.logits[7] = 1;          // of the first sample
  predictions.logits[101 + 100] = 1;  // of the second one
  const Json json = ReportJson(MakeEvaluationReport(predictions), Names(101));
  EXPECT_FALSE(json.contains("confusion_matrix"));
  EXPECT_EQ(json["confusion_cells"],
            ParseJson(R"([{"label": "class 5", "prediction": "class 7", "count": 1},
                            {"label": "class 100", "prediction": "class 100", "count": 1}])"));
}

TEST(EvaluationReportTest, OnlyTheSecondOfTwoClassesHasACurve) {
  const Json two =
      ReportJson(MakeEvaluationReport({.logits = {0, 1, 2, 0}, .classes = {1, 0}}), {"a", "b"});
  EXPECT_FALSE(two["classes"][0].contains("precision_recall_curve"));
  EXPECT_EQ(two["classes"][1]["precision_recall_curve"]["recall"], ParseJson("[1.0, 1.0, 0.0]"));
  const Json several = ReportJson(
      MakeEvaluationReport({.kind = LabelKind::kMultiLabel, .logits = {0, 1}, .scores = {1, 1}}),
      {"a", "b"});
  EXPECT_TRUE(several["classes"][0]["precision_recall_curve"].is_object());
}

TEST(EvaluationReportTest, CurvesOfManyClassesAreShort) {
  for (const auto& [num_labels, most] : {std::pair(3, 100u), std::pair(250, 40u)}) {
    Predictions predictions{.num_labels = num_labels};
    for (int i = 0; i < 400; ++i) {
      predictions.classes.push_back(i * 7 % 3);
      for (int c = 0; c < num_labels; ++c)
        predictions.logits.push_back(static_cast<float>(i * 31 % 401 * (c + 1) % 97) * 0.01f);
    }
    const EvaluationReport report = MakeEvaluationReport(predictions);
    ASSERT_TRUE(report.labels[2].curve);
    EXPECT_LE(report.labels[2].curve->recall.size(), most);
    EXPECT_GE(report.labels[2].curve->recall.size(), most / 2);
  }
}

TEST(EvaluationReportTest, ConfidencesOnABinsEndBelongToIt) {
  Calibration calibration;
  for (int b = 0; b < Calibration::kNumBins; ++b) calibration.Add(Calibration::EndOf(b), true);
  calibration.Add(0, false);
  calibration.Add(std::nextafter(1.0 / 15, 1), false);
  EXPECT_EQ(calibration.bins()[0].count, 2);
  EXPECT_EQ(calibration.bins()[1].count, 2);
  EXPECT_EQ(calibration.bins()[14].count, 1);
  EXPECT_EQ(calibration.bins()[14].correct, 1);
}

TEST(EvaluationReportTest, BadPredictionsAreReported) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(MakeEvaluationReport({.logits = {0, nan}, .classes = {1}}), Error);
  EXPECT_THROW(MakeEvaluationReport({.logits = {0, 1}, .classes = {2}}), Error);
  EXPECT_THROW(MakeEvaluationReport({.logits = {0, 1}, .classes = {-1}}), Error);
  EXPECT_THROW(MakeEvaluationReport({.logits = {0, 1}, .classes = {1, 1}}), Error);
  EXPECT_THROW(MakeEvaluationReport({.kind = LabelKind::kMultiLabel, .logits = {0, 1, 2, 3}}),
               Error);
  EXPECT_THROW(MakeEvaluationReport({.kind = LabelKind::kRegression, .num_labels = 1}), Error);
  EXPECT_THROW(ReportJson(MakeEvaluationReport({.logits = {0, 1}, .classes = {1}}), {"a"}), Error);
}

}  // namespace
}  // namespace lathe
