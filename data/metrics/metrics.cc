#include "lathe/data/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lathe/core/base/error.h"
#include "lathe/data/metrics/probabilities.h"

namespace lathe {
namespace {

double Ratio(double numerator, double denominator) {
  return denominator == 0 ? 0.0 : numerator / denominator;
}

template <typename T>
void CheckSameSize(const char* op, std::span<const T> predictions, std::span<const T> labels) {
  Check(predictions.size() == labels.size(), op, "expected a prediction for each of ",
        labels.size(), " labels but got ", predictions.size());
}

bool IsConstant(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == values.front(); });
}

double Mean(std::span<const double> values) {
  return Ratio(std::accumulate(values.begin(), values.end(), 0.0),
               static_cast<double>(values.size()));
}

// Counts of one class: how often it was predicted, was right, and was both.
struct Counts {
  int64_t predicted = 0, actual = 0, correct = 0;
  double F1() const { return Ratio(2.0 * correct, static_cast<double>(predicted + actual)); }
};

std::map<int64_t, Counts> CountClasses(const char* op, std::span<const int64_t> predictions,
                                       std::span<const int64_t> labels) {
  CheckSameSize(op, predictions, labels);
  std::map<int64_t, Counts> counts;
  for (size_t i = 0; i < labels.size(); ++i) {
    ++counts[predictions[i]].predicted;
    ++counts[labels[i]].actual;
    if (predictions[i] == labels[i]) ++counts[labels[i]].correct;
  }
  return counts;
}

// Ranks the values from 1. Equal values share the mean of their ranks.
std::vector<double> AverageRanks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = (begin + 1 + end) / 2.0;
  }
  return ranks;
}

std::vector<double> ToDouble(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

MetricValues ClassMetrics(const Predictions& p, std::string_view task) {
  for (int64_t label : p.classes) {
    Check(label >= 0 && label < p.num_labels, "metrics", "label ", label, " is not in [0, ",
          p.num_labels, ")");
  }
  const std::vector<int64_t> predicted = ArgMax(p.logits, p.num_labels);
  if (task == "cola") return {{"matthews_correlation", MatthewsCorrelation(predicted, p.classes)}};
  const double accuracy = Accuracy(predicted, p.classes);
  const double f1 =
      p.num_labels == 2 ? F1Binary(predicted, p.classes) : F1Macro(predicted, p.classes);
  if (task == "mrpc" || task == "qqp") {
    return {{"accuracy", accuracy}, {"f1", f1}, {"combined_score", (accuracy + f1) / 2}};
  }
  if (!task.empty()) return {{"accuracy", accuracy}};
  return {{"accuracy", accuracy},
          {"f1", f1},
          {"matthews_correlation", MatthewsCorrelation(predicted, p.classes)}};
}

MetricValues RegressionMetrics(const Predictions& p, std::string_view task) {
  const std::vector<double> predicted = ToDouble(p.logits), scores = ToDouble(p.scores);
  const double pearson = Pearson(predicted, scores), spearman = Spearman(predicted, scores);
  if (task == "stsb") {
    return {{"pearson", pearson},
            {"spearmanr", spearman},
            {"combined_score", (pearson + spearman) / 2}};
  }
  return {
      {"mse", MeanSquaredError(predicted, scores)}, {"pearson", pearson}, {"spearmanr", spearman}};
}

MetricValues MultiLabelMetrics(const Predictions& p) {
  const std::vector<uint8_t> predicted = PredictedLabels(p);
  std::vector<uint8_t> labels;
  for (const float score : p.scores) labels.push_back(score > 0.5f);
  return {{"accuracy", SubsetAccuracy(predicted, labels, p.num_labels)},
          {"f1", F1Micro(predicted, labels)}};
}

}  // namespace

double Accuracy(std::span<const int64_t> predictions, std::span<const int64_t> labels) {
  CheckSameSize("accuracy", predictions, labels);
  int64_t correct = 0;
  for (size_t i = 0; i < labels.size(); ++i) correct += predictions[i] == labels[i];
  return Ratio(static_cast<double>(correct), static_cast<double>(labels.size()));
}

double F1Binary(std::span<const int64_t> predictions, std::span<const int64_t> labels,
                int64_t positive) {
  return CountClasses("f1", predictions, labels)[positive].F1();
}

double F1Macro(std::span<const int64_t> predictions, std::span<const int64_t> labels) {
  const auto counts = CountClasses("f1", predictions, labels);
  double sum = 0;
  for (const auto& [label, count] : counts) sum += count.F1();
  return Ratio(sum, static_cast<double>(counts.size()));
}

double MatthewsCorrelation(std::span<const int64_t> predictions, std::span<const int64_t> labels) {
  // With n samples, c right predictions, p_k predictions and t_k samples of class k:
  //   (c n - sum p_k t_k) / sqrt((n^2 - sum p_k^2) (n^2 - sum t_k^2))
  const auto counts = CountClasses("matthews_correlation", predictions, labels);
  const double n = static_cast<double>(labels.size());
  double correct = 0, both = 0, predicted = 0, actual = 0;
  for (const auto& [label, count] : counts) {
    const double p = static_cast<double>(count.predicted), t = static_cast<double>(count.actual);
    correct += static_cast<double>(count.correct);
    both += p * t;
    predicted += p * p;
    actual += t * t;
  }
  return Ratio(correct * n - both, std::sqrt(n * n - predicted) * std::sqrt(n * n - actual));
}

double Pearson(std::span<const double> predictions, std::span<const double> labels) {
  CheckSameSize("pearson", predictions, labels);
  // Constants come first, because the rounded mean of a constant may differ from it. That would
  // look like a spread.
  if (IsConstant(predictions) || IsConstant(labels)) return 0.0;
  const double mean_x = Mean(predictions), mean_y = Mean(labels);
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double x = predictions[i] - mean_x, y = labels[i] - mean_y;
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  return std::clamp(Ratio(xy, std::sqrt(xx) * std::sqrt(yy)), -1.0, 1.0);
}

double Spearman(std::span<const double> predictions, std::span<const double> labels) {
  CheckSameSize("spearman", predictions, labels);
  return Pearson(AverageRanks(predictions), AverageRanks(labels));
}

double MeanSquaredError(std::span<const double> predictions, std::span<const double> labels) {
  CheckSameSize("mse", predictions, labels);
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    sum += (predictions[i] - labels[i]) * (predictions[i] - labels[i]);
  }
  return Ratio(sum, static_cast<double>(labels.size()));
}

double SubsetAccuracy(std::span<const uint8_t> predictions, std::span<const uint8_t> labels,
                      int64_t num_labels) {
  CheckSameSize("accuracy", predictions, labels);
  Check(num_labels > 0 && labels.size() % num_labels == 0, "accuracy", labels.size(),
        " values do not make whole rows of ", num_labels, " labels");
  int64_t correct = 0;
  for (size_t i = 0; i < labels.size(); i += num_labels) {
    correct +=
        std::equal(labels.begin() + i, labels.begin() + i + num_labels, predictions.begin() + i);
  }
  return Ratio(static_cast<double>(correct), static_cast<double>(labels.size() / num_labels));
}

double F1Micro(std::span<const uint8_t> predictions, std::span<const uint8_t> labels) {
  CheckSameSize("f1", predictions, labels);
  Counts counts;
  for (size_t i = 0; i < labels.size(); ++i) {
    counts.predicted += predictions[i] != 0;
    counts.actual += labels[i] != 0;
    counts.correct += predictions[i] != 0 && labels[i] != 0;
  }
  return counts.F1();
}

std::vector<int64_t> ArgMax(std::span<const float> logits, int64_t num_labels) {
  Check(num_labels > 0 && logits.size() % num_labels == 0, "argmax", logits.size(),
        " logits do not make whole rows of ", num_labels);
  std::vector<int64_t> classes;
  classes.reserve(logits.size() / num_labels);
  for (auto row = logits.begin(); row != logits.end(); row += num_labels) {
    classes.push_back(std::max_element(row, row + num_labels) - row);
  }
  return classes;
}

std::vector<uint8_t> PredictedLabels(const Predictions& p) {
  std::vector<uint8_t> predicted;
  predicted.reserve(p.logits.size());
  if (p.rule.thresholds.empty()) {
    for (const float logit : p.logits) predicted.push_back(logit > 0);
    return predicted;
  }
  Check(std::ssize(p.rule.thresholds) == p.num_labels, "metrics", "expected ", p.num_labels,
        " thresholds but got ", p.rule.thresholds.size());
  const Probabilities probabilities(p.kind, p.num_labels, p.logits, p.rule.temperature);
  for (int64_t i = 0; i < probabilities.num_samples(); ++i) {
    for (int64_t c = 0; c < p.num_labels; ++c)
      predicted.push_back(probabilities.Of(i, c) > p.rule.thresholds[static_cast<size_t>(c)]);
  }
  return predicted;
}

MetricValues ComputeMetrics(const Predictions& predictions, std::string_view task) {
  for (size_t i = 0; i < predictions.logits.size(); ++i) {
    Check(std::isfinite(predictions.logits[i]), "metrics", "logits of sample ",
          i / std::max<int64_t>(1, predictions.num_labels),
          " are not finite: ", predictions.logits[i]);
  }
  switch (predictions.kind) {
    case LabelKind::kSingleLabel:
      return ClassMetrics(predictions, task);
    case LabelKind::kRegression:
      return RegressionMetrics(predictions, task);
    case LabelKind::kMultiLabel:
      return MultiLabelMetrics(predictions);
  }
  throw InvalidArgument("[metrics] the kind of the labels is unknown");
}

}  // namespace lathe
