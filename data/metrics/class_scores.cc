#include "lathe/data/metrics/class_scores.h"

#include <map>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

std::optional<double> Ratio(double numerator, int64_t denominator) {
  if (denominator == 0) return std::nullopt;
  return numerator / static_cast<double>(denominator);
}

template <typename T>
void CheckSameSize(std::span<const T> predictions, std::span<const T> labels) {
  Check(predictions.size() == labels.size(), "class_scores", "expected a prediction for each of ",
        labels.size(), " labels but got ", predictions.size());
}

int64_t TotalSupport(std::span<const ClassCounts> counts) {
  int64_t total = 0;
  for (const ClassCounts& count : counts) total += count.actual;
  return total;
}

// Returns the mean of one score, weighted by `weight(counts)`, over classes where it is defined.
template <typename Weight>
std::optional<double> Mean(std::span<const ClassCounts> counts,
                           std::optional<double> ClassScores::*score, Weight weight) {
  double sum = 0, weights = 0;
  for (const ClassCounts& count : counts) {
    const std::optional<double> value = ScoresOf(count).*score;
    if (!value) continue;
    sum += weight(count) * *value;
    weights += weight(count);
  }
  if (weights == 0) return std::nullopt;
  return sum / weights;
}

template <typename Weight>
ClassScores Means(std::span<const ClassCounts> counts, Weight weight) {
  return {.precision = Mean(counts, &ClassScores::precision, weight),
          .recall = Mean(counts, &ClassScores::recall, weight),
          .f1 = Mean(counts, &ClassScores::f1, weight),
          .support = TotalSupport(counts)};
}

}  // namespace

std::vector<ClassCounts> CountClasses(std::span<const int64_t> predictions,
                                      std::span<const int64_t> labels, int64_t num_classes) {
  CheckSameSize(predictions, labels);
  std::vector<ClassCounts> counts(static_cast<size_t>(num_classes));
  const auto at = [&](int64_t c) -> ClassCounts& {
    Check(c >= 0 && c < num_classes, "class_scores", "class ", c, " is not in [0, ", num_classes,
          ")");
    return counts[static_cast<size_t>(c)];
  };
  for (size_t i = 0; i < labels.size(); ++i) {
    ++at(predictions[i]).predicted;
    ++at(labels[i]).actual;
    if (predictions[i] == labels[i]) ++at(labels[i]).correct;
  }
  return counts;
}

std::vector<ClassCounts> CountLabels(std::span<const uint8_t> predictions,
                                     std::span<const uint8_t> labels, int64_t num_labels) {
  CheckSameSize(predictions, labels);
  const auto width = static_cast<size_t>(num_labels);
  Check(width > 0 && labels.size() % width == 0, "class_scores", labels.size(),
        " values do not make whole rows of ", num_labels, " labels");
  std::vector<ClassCounts> counts(width);
  for (size_t i = 0; i < labels.size(); ++i) {
    ClassCounts& count = counts[i % width];
    count.predicted += predictions[i] != 0;
    count.actual += labels[i] != 0;
    count.correct += predictions[i] != 0 && labels[i] != 0;
  }
  return counts;
}

ClassScores ScoresOf(const ClassCounts& counts) {
  const auto correct = static_cast<double>(counts.correct);
  return {.precision = Ratio(correct, counts.predicted),
          .recall = Ratio(correct, counts.actual),
          .f1 = Ratio(2 * correct, counts.predicted + counts.actual),
          .support = counts.actual};
}

ClassScores MicroMean(std::span<const ClassCounts> counts) {
  ClassCounts sum;
  for (const ClassCounts& count : counts) {
    sum.predicted += count.predicted;
    sum.actual += count.actual;
    sum.correct += count.correct;
  }
  return ScoresOf(sum);
}

ClassScores MacroMean(std::span<const ClassCounts> counts) {
  return Means(counts, [](const ClassCounts&) { return 1.0; });
}

ClassScores WeightedMean(std::span<const ClassCounts> counts) {
  return Means(counts, [](const ClassCounts& count) { return static_cast<double>(count.actual); });
}

std::optional<double> MeanOfDefined(std::span<const std::optional<double>> values) {
  double sum = 0;
  int64_t defined = 0;
  for (const std::optional<double>& value : values) {
    if (!value) continue;
    sum += *value;
    ++defined;
  }
  return Ratio(sum, defined);
}

std::vector<ConfusionCell> ConfusionCells(std::span<const int64_t> predictions,
                                          std::span<const int64_t> labels) {
  CheckSameSize(predictions, labels);
  std::map<std::pair<int64_t, int64_t>, int64_t> counts;
  for (size_t i = 0; i < labels.size(); ++i) ++counts[{labels[i], predictions[i]}];
  std::vector<ConfusionCell> cells;
  for (const auto& [pair, count] : counts) cells.push_back({pair.first, pair.second, count});
  return cells;
}

}  // namespace lathe
