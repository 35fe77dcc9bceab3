// Precision, recall and F1 of each class, and their means over classes, as scikit-learn's
// precision_recall_fscore_support defines them with zero_division=nan.
//
//   std::vector<ClassCounts> counts = CountClasses(predicted, labels, 3);
//   ClassScores first = ScoresOf(counts[0]), mean = MacroMean(counts);
//
// A value whose denominator is 0 is undefined (nullopt): the recall of a class without samples, and
// the precision of one that is never predicted. A mean is that of the defined values, and undefined
// without any. metrics.h has 0 in these places, because its numbers also choose the best model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lathe {

// Counts of one class: how often it was predicted, was right, and was both.
struct ClassCounts {
  int64_t predicted = 0, actual = 0, correct = 0;
};

struct ClassScores {
  std::optional<double> precision = {};  // correct / predicted
  std::optional<double> recall = {};     // correct / actual
  std::optional<double> f1 = {};         // 2 correct / (predicted + actual)
  int64_t support = 0;                   // actual
};

// Counts single-label predictions. Both have length n and values in [0, num_classes), else this
// throws.
std::vector<ClassCounts> CountClasses(std::span<const int64_t> predictions,
                                      std::span<const int64_t> labels, int64_t num_classes);

// Counts predictions of several labels at once. Both are [n, num_labels] of 0 and 1.
std::vector<ClassCounts> CountLabels(std::span<const uint8_t> predictions,
                                     std::span<const uint8_t> labels, int64_t num_labels);

ClassScores ScoresOf(const ClassCounts& counts);

// Returns the scores of the sums of all counts.
ClassScores MicroMean(std::span<const ClassCounts> counts);
// Returns the means over classes.
ClassScores MacroMean(std::span<const ClassCounts> counts);
// Returns the means over classes, each weighted by its support.
ClassScores WeightedMean(std::span<const ClassCounts> counts);

// Returns the mean of the defined values; nullopt without any.
std::optional<double> MeanOfDefined(std::span<const std::optional<double>> values);

// How often samples of the class `label` were predicted as `prediction`.
struct ConfusionCell {
  int64_t label = 0, prediction = 0, count = 0;
  bool operator==(const ConfusionCell&) const = default;
};

// Returns the confusion matrix of single-label predictions without its zeros, sorted by label and
// prediction. Its size does not depend on the number of classes.
std::vector<ConfusionCell> ConfusionCells(std::span<const int64_t> predictions,
                                          std::span<const int64_t> labels);

}  // namespace lathe
