// Metrics of text classification and regression, as GLUE reports them and as scikit-learn and SciPy
// define them.
//
//   double accuracy = Accuracy(predicted_classes, classes);
//   MetricValues all = ComputeMetrics({.kind = LabelKind::kSingleLabel, .num_labels = 2, .logits =
//   logits,
//                                      .classes = classes}, "mrpc");   // accuracy, f1,
//                                      combined_score
//
// Predictions and labels have the same length n, else lathe::Error. Every metric is defined for
// every input: where a denominator is zero (n = 0, a constant column, a class that nobody
// predicted) its value is 0, so that no NaN decides which checkpoint is best. Sums are in double.
// Pure functions: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/datasets/label_set.h"

namespace lathe {

// Share of equal classes.
double Accuracy(std::span<const int64_t> predictions, std::span<const int64_t> labels);

// F1 = 2 tp / (2 tp + fp + fn) of `positive` against the rest.
double F1Binary(std::span<const int64_t> predictions, std::span<const int64_t> labels,
                int64_t positive = 1);

// Mean F1 of the classes that occur among predictions or labels (scikit-learn's average="macro").
double F1Macro(std::span<const int64_t> predictions, std::span<const int64_t> labels);

// Matthews' correlation for any number of classes: Gorodkin (2004), as
// sklearn.metrics.matthews_corrcoef.
double MatthewsCorrelation(std::span<const int64_t> predictions, std::span<const int64_t> labels);

// Linear correlation, in [-1, 1].
double Pearson(std::span<const double> predictions, std::span<const double> labels);

// Pearson's correlation of the ranks; equal values share the mean of their ranks.
double Spearman(std::span<const double> predictions, std::span<const double> labels);

double MeanSquaredError(std::span<const double> predictions, std::span<const double> labels);

// Multi-label, predictions and labels [n, num_labels] of 0 and 1: the share of rows that are right
// in every label, and F1 over all n * num_labels decisions.
double SubsetAccuracy(std::span<const uint8_t> predictions, std::span<const uint8_t> labels,
                      int64_t num_labels);
double F1Micro(std::span<const uint8_t> predictions, std::span<const uint8_t> labels);

// The model's outputs for a dataset beside what was right; fill `classes` or `scores` as in
// TokenizedDataset.
struct Predictions {
  LabelKind kind = LabelKind::kSingleLabel;
  int64_t num_labels = 2;
  std::vector<float> logits{};     // [n, num_labels]; regression: [n] scores
  std::vector<int64_t> classes{};  // [n] single-label, each in [0, num_labels)
  std::vector<float> scores{};     // [n] regression, [n, num_labels] 0/1 multi-label
};

using MetricValues = std::map<std::string, double>;

// Single-label predicts the largest logit (the first of equal ones), multi-label every positive one
// (a probability above one half). The names are those of GLUE's metric for `task`:
//   cola       matthews_correlation
//   mrpc, qqp  accuracy, f1, combined_score (their mean)
//   stsb       pearson, spearmanr, combined_score
//   others, and "": accuracy, f1 (binary for two classes, else macro) and matthews_correlation; for
//   regression mse,
//              pearson and spearmanr; for multi-label accuracy and f1 (micro).
// Throws if a logit is not finite: a diverged model has no accuracy.
MetricValues ComputeMetrics(const Predictions& predictions, std::string_view task = "");

// Row-wise argmax of logits [n, num_labels], the first of equal ones.
std::vector<int64_t> ArgMax(std::span<const float> logits, int64_t num_labels);

}  // namespace lathe
