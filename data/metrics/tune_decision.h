// Fits a DecisionRule to predictions for labelled data.
//
//   predictions.rule.temperature = FitTemperature(predictions);
//   predictions.rule.thresholds = TuneThresholds(predictions);   // of calibrated probabilities
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lathe/data/metrics/metrics.h"

namespace lathe {

// The bounds of the temperature. Without errors the log loss falls forever as the temperature
// falls. If the predictions are worse than chance, it falls forever as the temperature rises.
inline constexpr double kLowestTemperature = 0.01, kHighestTemperature = 100;

// Returns the temperature that minimizes the mean log loss of a single label or of several. The
// rule that the predictions have counts for nothing. Returns a bound itself if the log loss is
// lowest there. Returns 1 without samples, and if all temperatures give the same log loss.
double FitTemperature(const Predictions& predictions);

// Returns the threshold for each of several labels that gives the highest F1, by the rule's
// temperature. If several thresholds do, it is the nearest to one half. A threshold lies halfway
// between two probabilities, or between the lowest one and 0. A label without samples gets one
// half.
std::vector<double> TuneThresholds(const Predictions& predictions);

// Does so for one label. `scores` are [n] probabilities, `positives` [n] of 0 and 1.
double BestThreshold(std::span<const double> scores, std::span<const uint8_t> positives);

}  // namespace lathe
