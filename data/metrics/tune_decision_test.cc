// tests/golden/make_metrics.py made the expected values, with scikit-learn 1.9.1 and SciPy 1.17.1.
#include "lathe/data/metrics/tune_decision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/metrics/evaluation_report.h"

namespace lathe {
namespace {

TEST(TuneDecisionTest, AgreesWithTheReference) {
  const auto cases = ParseJson(ReadFile("tests/golden/metrics.json"));
  for (const auto& one : cases) {
    SCOPED_TRACE(one.at("name"));
    const bool several = one.at("kind") == "multi";
    Predictions predictions{.kind = several ? LabelKind::kMultiLabel : LabelKind::kSingleLabel,
                            .num_labels = one.at("num_labels"),
                            .logits = one.at("logits"),
                            .classes = one.value("classes", std::vector<int64_t>{}),
                            .scores = one.value("scores", std::vector<float>{})};
    const double temperature = FitTemperature(predictions);
    EXPECT_NEAR(temperature, one.at("temperature"), 1e-4 * temperature);
    predictions.rule.temperature = temperature;
    EXPECT_NEAR(*MakeEvaluationReport(predictions).log_loss, one.at("calibrated_log_loss"), 1e-6);
    if (!several) continue;
    // The threshold itself is not unique; what it reaches is.
    predictions.rule.thresholds = TuneThresholds(predictions);
    const EvaluationReport report = MakeEvaluationReport(predictions);
    const auto& best = one.at("best_f1");
    ASSERT_EQ(best.size(), report.labels.size());
    for (size_t c = 0; c < best.size(); ++c) {
      if (best[c].is_null()) {
        EXPECT_EQ(predictions.rule.thresholds[c], 0.5) << c;
      } else {
        EXPECT_NEAR(*report.labels[c].scores.f1, best[c].get<double>(), 1e-9) << c;
      }
    }
  }
}

TEST(TuneDecisionTest, ThresholdsLieBetweenProbabilities) {
  const std::vector<double> scores = {0.9, 0.4, 0.3, 0.1};
  EXPECT_DOUBLE_EQ(BestThreshold(scores, std::vector<uint8_t>{1, 1, 0, 0}), 0.35);
  EXPECT_DOUBLE_EQ(BestThreshold(scores, std::vector<uint8_t>{1, 0, 0, 0}), 0.5);
  EXPECT_DOUBLE_EQ(BestThreshold(scores, std::vector<uint8_t>{1, 1, 1, 1}), 0.05);
  EXPECT_DOUBLE_EQ(BestThreshold(scores, std::vector<uint8_t>{0, 0, 0, 0}), 0.5);
  // Equal probabilities stay together: predicting the two at 0.4 gives F1 4/5, more than 2/3.
  EXPECT_DOUBLE_EQ(
      BestThreshold(std::vector<double>{0.8, 0.4, 0.4, 0.2}, std::vector<uint8_t>{1, 1, 0, 0}),
      0.3);
  EXPECT_EQ(BestThreshold({}, {}), 0.5);
}

TEST(TuneDecisionTest, WithoutErrorsTheTemperatureIsTheLowest) {
  EXPECT_EQ(FitTemperature({.logits = {1, 0, 0, 1}, .classes = {0, 1}}), kLowestTemperature);
  EXPECT_EQ(FitTemperature({.logits = {1, 0, 0, 1}, .classes = {1, 0}}), kHighestTemperature);
  // The probabilities at the lowest temperature round to 0 and 1, so that the slope there is 0.
  EXPECT_EQ(FitTemperature({.logits = {20, 0, 0, 20}, .classes = {0, 1}}), kLowestTemperature);
}

TEST(TuneDecisionTest, WithoutAnythingToFitTheTemperatureIsOne) {
  EXPECT_EQ(FitTemperature({}), 1);
  EXPECT_EQ(FitTemperature({.logits = {0, 0, 0, 0}, .classes = {0, 1}}), 1);
  EXPECT_EQ(
      FitTemperature(
          {.kind = LabelKind::kMultiLabel, .num_labels = 2, .logits = {0, 0}, .scores = {1, 0}}),
      1);
}

TEST(TuneDecisionTest, ThresholdsDecide) {
  Predictions predictions{.kind = LabelKind::kMultiLabel,
                          .num_labels = 2,
                          .logits = {1, -1, -1, 1},
                          .scores = {1, 1, 0, 1}};
  EXPECT_EQ(PredictedLabels(predictions), (std::vector<uint8_t>{1, 0, 0, 1}));
  predictions.rule.thresholds = {0.8, 0.2};  // the probabilities are 0.731 and 0.269
  EXPECT_EQ(PredictedLabels(predictions), (std::vector<uint8_t>{0, 1, 0, 1}));
  EXPECT_EQ(ComputeMetrics(predictions)["accuracy"], 0.5);
  predictions.rule.temperature = 0.5;  // now they are 0.881 and 0.119
  EXPECT_EQ(PredictedLabels(predictions), (std::vector<uint8_t>{1, 0, 0, 1}));
  predictions.rule.thresholds = {0.5};
  EXPECT_THROW(PredictedLabels(predictions), Error);
  EXPECT_THROW(TuneThresholds({.logits = {1, 0}, .classes = {0}}), Error);
  EXPECT_THROW(FitTemperature({.logits = {1, 0}, .classes = {0, 1}}), Error);
}

}  // namespace
}  // namespace lathe
