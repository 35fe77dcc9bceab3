// Metrics of text classification and regression, as GLUE reports them and as scikit-learn and SciPy
// define them.
//
//   double accuracy = Accuracy(predicted_classes, classes);
//   MetricValues all = ComputeMetrics({.kind = LabelKind::kSingleLabel,
//                                      .num_labels = 2,
//                                      .logits = logits,
//                                      .classes = classes},
//                                     "mrpc");  // accuracy, f1, combined_score
//
// Predictions and labels must have the same length n, else the function throws lathe::Error. Every
// metric is defined for every input. Its value is 0 if a denominator is zero: if n = 0, a column is
// constant, or a class is never predicted. So no NaN decides which checkpoint is best. Sums are in
// double. All are pure functions, which any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/datasets/label_set.h"
#include "lathe/data/metrics/decision_rule.h"

namespace lathe {

// Returns the share of predictions that equal their label.
double Accuracy(std::span<const int64_t> predictions, std::span<const int64_t> labels);

// Returns F1 = 2 tp / (2 tp + fp + fn) of the class `positive` against the rest.
double F1Binary(std::span<const int64_t> predictions, std::span<const int64_t> labels,
                int64_t positive = 1);

// Returns the mean F1 of the classes that occur among predictions or labels (scikit-learn's
// average="macro").
double F1Macro(std::span<const int64_t> predictions, std::span<const int64_t> labels);

// Returns Matthews' correlation for any number of classes: Gorodkin (2004), like
// sklearn.metrics.matthews_corrcoef.
double MatthewsCorrelation(std::span<const int64_t> predictions, std::span<const int64_t> labels);

// Returns the linear correlation, in [-1, 1].
double Pearson(std::span<const double> predictions, std::span<const double> labels);

// Returns Pearson's correlation of the ranks; equal values share the mean of their ranks.
double Spearman(std::span<const double> predictions, std::span<const double> labels);

double MeanSquaredError(std::span<const double> predictions, std::span<const double> labels);

// Both functions are for multi-label data: predictions and labels are [n, num_labels] of 0 and 1.
// SubsetAccuracy is the share of rows that are right in every label. F1Micro is F1 over all n *
// num_labels decisions.
double SubsetAccuracy(std::span<const uint8_t> predictions, std::span<const uint8_t> labels,
                      int64_t num_labels);
double F1Micro(std::span<const uint8_t> predictions, std::span<const uint8_t> labels);

// A model's outputs for a dataset, and the right answers. Fill `classes` or `scores` as in
// TokenizedDataset.
struct Predictions {
  LabelKind kind = LabelKind::kSingleLabel;
  int64_t num_labels = 2;
  std::vector<float> logits{};     // [n, num_labels]; regression: [n] scores
  std::vector<int64_t> classes{};  // [n] single-label, each in [0, num_labels)
  std::vector<float> scores{};     // [n] regression, [n, num_labels] 0/1 multi-label
  DecisionRule rule{};
};

// Returns which of several labels at once are predicted: [n, num_labels] of 0 and 1. Without
// thresholds these are the positive logits.
std::vector<uint8_t> PredictedLabels(const Predictions& predictions);

using MetricValues = std::map<std::string, double>;

// Returns the metrics of `task`, a GLUE task or "", by the names that run_glue has. The metric
// "glue" of the package evaluate and run_glue's compute_metrics define them:
//   single-label  cola: matthews_correlation
//                 mrpc, qqp: accuracy, f1, combined_score (their mean)
//                 "": accuracy, f1, matthews_correlation
//                 others: accuracy
//   regression    stsb: pearson, spearmanr, combined_score (their mean)
//                 others: mse, pearson, spearmanr
//   multi-label   accuracy (of whole rows), f1 (micro)
// A single-label f1 is binary for two classes, else macro. The predicted class is that of the
// largest logit (the first of equal ones). For multi-label, every label with a positive logit (a
// probability above one half) is predicted, unless the rule has thresholds. Throws if a logit is
// not finite: a diverged model has no accuracy.
MetricValues ComputeMetrics(const Predictions& predictions, std::string_view task = "");

// Returns the argmax of each row of `logits` [n, num_labels]; the first of equal ones.
std::vector<int64_t> ArgMax(std::span<const float> logits, int64_t num_labels);

}  // namespace lathe
