// Expected values with many digits come from scikit-learn 1.9.1 and SciPy 1.17.1, called on the
// same lists: f1_score, matthews_corrcoef, pearsonr, spearmanr, mean_squared_error, accuracy_score.
// tests/golden/make_glue_metrics.py made the file of run_glue's metrics with them.
#include "lathe/data/metrics/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Classes = std::vector<int64_t>;
using Scores = std::vector<double>;
constexpr double kTolerance = 1e-14;

TEST(MetricsTest, BinaryClasses) {
  const Classes labels{0, 1, 1, 0, 1, 0, 1, 1, 0, 1}, predicted{0, 1, 0, 0, 1, 1, 1, 1, 0, 0};
  EXPECT_DOUBLE_EQ(Accuracy(predicted, labels), 0.7);
  EXPECT_NEAR(F1Binary(predicted, labels), 0.7272727272727273, kTolerance);
  EXPECT_NEAR(F1Binary(predicted, labels, 0), 6.0 / 9.0, kTolerance);  // tp 3, fp 2, fn 1
  EXPECT_NEAR(MatthewsCorrelation(predicted, labels), 0.408248290463863, kTolerance);
}

TEST(MetricsTest, ManyClasses) {
  const Classes labels{0, 1, 2, 2, 1, 0, 2, 1, 0, 2}, predicted{0, 2, 2, 2, 1, 1, 2, 1, 0, 0};
  EXPECT_NEAR(F1Macro(predicted, labels), 0.6944444444444443, kTolerance);
  EXPECT_NEAR(MatthewsCorrelation(predicted, labels), 0.5454545454545454, kTolerance);
  // Class 1 occurs nowhere and does not count.
  EXPECT_NEAR(F1Macro(Classes{0, 2, 2, 2}, Classes{0, 0, 2, 2}), 0.7333333333333334, kTolerance);
}

TEST(MetricsTest, Scores) {
  const Scores predicted{1.2, 3.4, 2.2, 4.9, 0.3, 3.4, 2.0, 5.0};
  const Scores labels{1.0, 3.0, 2.5, 5.0, 0.5, 2.5, 2.5, 4.0};  // ties on both sides
  EXPECT_NEAR(Pearson(predicted, labels), 0.9473527812971003, kTolerance);
  EXPECT_NEAR(Spearman(predicted, labels), 0.9326733179802502, kTolerance);
  EXPECT_NEAR(MeanSquaredError(predicted, labels), 0.29999999999999993, kTolerance);
  EXPECT_DOUBLE_EQ(Spearman(Scores{1, 2, 30}, Scores{9, 4, 1}), -1.0);
}

TEST(MetricsTest, MultiLabel) {
  const std::vector<uint8_t> labels{1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1};
  const std::vector<uint8_t> predicted{1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(SubsetAccuracy(predicted, labels, 3), 0.5);
  EXPECT_NEAR(F1Micro(predicted, labels), 0.8333333333333334, kTolerance);
}

TEST(MetricsTest, ZeroDenominatorsGiveZero) {
  EXPECT_EQ(Accuracy({}, {}), 0.0);
  EXPECT_EQ(F1Binary(Classes{0, 0}, Classes{0, 0}), 0.0);
  EXPECT_EQ(F1Macro({}, {}), 0.0);
  EXPECT_EQ(MatthewsCorrelation({}, {}), 0.0);
  EXPECT_EQ(MatthewsCorrelation(Classes{1, 1, 1}, Classes{0, 1, 1}), 0.0);
  EXPECT_EQ(MatthewsCorrelation(Classes{1, 1}, Classes{1, 1}), 0.0);
  EXPECT_EQ(Pearson({}, {}), 0.0);
  EXPECT_EQ(Pearson(Scores{2, 2, 2}, Scores{1, 2, 3}), 0.0);
  EXPECT_EQ(Spearman(Scores{1, 2, 3}, Scores{5, 5, 5}), 0.0);
  EXPECT_EQ(MeanSquaredError({}, {}), 0.0);
  EXPECT_EQ(SubsetAccuracy({}, {}, 3), 0.0);
  EXPECT_EQ(F1Micro(std::vector<uint8_t>{0, 0}, std::vector<uint8_t>{0, 0}), 0.0);
  // The rounded mean of ten values of 0.1 is not 0.1. The difference must not count as a spread.
  EXPECT_EQ(Pearson(Scores(10, 0.1), Scores{1, 2, 3, 4, 5, 6, 7, 8, 9, 11}), 0.0);
}

TEST(MetricsTest, SizesMustAgree) {
  EXPECT_THROW(Accuracy(Classes{1}, Classes{1, 0}), Error);
  EXPECT_THROW(Pearson(Scores{1}, Scores{}), Error);
  EXPECT_THROW(SubsetAccuracy(std::vector<uint8_t>{1, 0}, std::vector<uint8_t>{1, 0}, 3), Error);
  EXPECT_THROW(ArgMax(std::vector<float>{1, 2, 3}, 2), Error);
}

TEST(ComputeMetricsTest, TasksHaveGluesNames) {
  // The predicted classes are 1 0 0 1 (a tie goes to the first class).
  const Predictions p{.logits = {0, 1, 2, 1, 3, 3, -2, -1}, .classes = {1, 0, 1, 1}};
  const double f1 = 0.8;  // tp 2, fn 1
  EXPECT_EQ(ComputeMetrics(p, "sst2"), (MetricValues{{"accuracy", 0.75}}));
  EXPECT_EQ(ComputeMetrics(p, "mrpc"),
            (MetricValues{{"accuracy", 0.75}, {"combined_score", (0.75 + f1) / 2}, {"f1", f1}}));
  MetricValues cola = ComputeMetrics(p, "cola");
  ASSERT_EQ(cola.size(), 1u);
  // tp 2, tn 1, fp 0, fn 1
  EXPECT_NEAR(cola["matthews_correlation"], 2 / std::sqrt(2.0 * 3 * 1 * 2), kTolerance);
  EXPECT_EQ(ComputeMetrics(p).size(), 3u);

  const Predictions scores{
      .kind = LabelKind::kRegression, .num_labels = 1, .logits = {1, 2, 4}, .scores = {1, 3, 5}};
  MetricValues stsb = ComputeMetrics(scores, "stsb");
  const double pearson = 6.0 / std::sqrt(8.0 * 14.0 / 3.0);  // sums of squares 14/3 and 8
  EXPECT_NEAR(stsb["pearson"], pearson, kTolerance);
  EXPECT_NEAR(stsb["spearmanr"], 1.0, kTolerance);
  EXPECT_NEAR(stsb["combined_score"], (pearson + 1) / 2, kTolerance);
  EXPECT_NEAR(ComputeMetrics(scores)["mse"], 2.0 / 3, kTolerance);

  const Predictions tags{.kind = LabelKind::kMultiLabel,
                         .num_labels = 2,
                         .logits = {1, -1, -3, 2},
                         .scores = {1, 0, 1, 1}};
  EXPECT_EQ(ComputeMetrics(tags), (MetricValues{{"accuracy", 0.5}, {"f1", 0.8}}));
}

TEST(ComputeMetricsTest, TasksHaveTheNumbersOfRunGlue) {
  const nlohmann::json cases = ParseJson(ReadFile("tests/golden/glue_metrics.json"));
  ASSERT_EQ(cases.size(), 9u);
  for (const nlohmann::json& one : cases) {
    const std::string task = one.at("task");
    const Predictions p{
        .kind = one.contains("scores") ? LabelKind::kRegression : LabelKind::kSingleLabel,
        .num_labels = one.at("num_labels"),
        .logits = one.at("logits"),
        .classes = one.value("classes", Classes{}),
        .scores = one.value("scores", std::vector<float>{})};
    const MetricValues values = ComputeMetrics(p, task);
    const MetricValues expected = one.at("expected").get<MetricValues>();
    ASSERT_EQ(values.size(), expected.size()) << task;
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(values.contains(name)) << task << " " << name;
      EXPECT_NEAR(values.at(name), value, kTolerance) << task << " " << name;
    }
  }
}

TEST(ComputeMetricsTest, BadPredictionsAreReported) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(ComputeMetrics({.logits = {0, 1, nan, 0}, .classes = {1, 0}}), Error);
  EXPECT_THROW(ComputeMetrics({.logits = {0, 1}, .classes = {2}}), Error);
  EXPECT_THROW(ComputeMetrics({.logits = {0, 1}, .classes = {-100}}), Error);
  EXPECT_THROW(ComputeMetrics({.logits = {0, 1}, .classes = {1, 1}}), Error);
}

}  // namespace
}  // namespace lathe
