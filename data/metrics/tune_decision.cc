#include "lathe/data/metrics/tune_decision.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lathe/core/base/error.h"
#include "lathe/data/metrics/probabilities.h"

namespace lathe {
namespace {

// Returns the derivative of the summed log loss by the inverse of the temperature, at this
// temperature. It is the sum over answers of (probability - what is right) * logit. It rises with
// the inverse, because the loss is convex in it.
double Slope(const Predictions& p, double temperature) {
  const Probabilities probabilities(p.kind, p.num_labels, p.logits, temperature);
  double slope = 0;
  for (int64_t i = 0; i < probabilities.num_samples(); ++i) {
    for (int64_t c = 0; c < p.num_labels; ++c) {
      const auto place = static_cast<size_t>(i * p.num_labels + c);
      const double right = p.kind == LabelKind::kMultiLabel
                               ? p.scores[place]
                               : (p.classes[static_cast<size_t>(i)] == c ? 1.0 : 0.0);
      slope += (probabilities.Of(i, c) - right) * p.logits[place];
    }
  }
  return slope;
}

}  // namespace

double FitTemperature(const Predictions& p) {
  const Probabilities probabilities(p.kind, p.num_labels, p.logits);
  const bool several = p.kind == LabelKind::kMultiLabel;
  Check(several ? p.scores.size() == p.logits.size()
                : std::ssize(p.classes) == probabilities.num_samples(),
        "temperature", "expected labels for each of ", probabilities.num_samples(), " samples");
  if (p.logits.empty()) return 1;
  // A slope of 0 at both ends is one of 0 between them, too.
  const double at_lowest = Slope(p, kLowestTemperature);
  const double at_highest = Slope(p, kHighestTemperature);
  if (at_lowest == 0 && at_highest == 0) return 1;
  if (at_lowest <= 0) return kLowestTemperature;
  if (at_highest >= 0) return kHighestTemperature;
  // Halves the interval of the logarithm until it has no double between its ends, nearly.
  double low = std::log(kLowestTemperature), high = std::log(kHighestTemperature);
  for (int step = 0; step < 50; ++step) {
    const double middle = (low + high) / 2;
    // A positive slope says that the inverse should fall, so the temperature should rise.
    (Slope(p, std::exp(middle)) > 0 ? low : high) = middle;
  }
  return std::exp((low + high) / 2);
}

double BestThreshold(std::span<const double> scores, std::span<const uint8_t> positives) {
  Check(scores.size() == positives.size(), "threshold", "expected a score for each of ",
        positives.size(), " samples but got ", scores.size());
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  const auto actual = std::count_if(positives.begin(), positives.end(), [](auto v) { return v; });
  double best = 0.5, best_f1 = 0;
  int64_t predicted = 0, correct = 0;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const double score = scores[order[begin]];
    for (; end < order.size() && scores[order[end]] == score; ++end) {
      ++predicted;
      correct += positives[order[end]] != 0;
    }
    const double below = end < order.size() ? scores[order[end]] : 0;
    // One half serves as well as the middle if it lies between the two probabilities.
    const double threshold = below <= 0.5 && 0.5 < score ? 0.5 : below + (score - below) / 2;
    const double f1 = 2.0 * static_cast<double>(correct) / static_cast<double>(predicted + actual);
    const bool nearer = std::abs(threshold - 0.5) < std::abs(best - 0.5);
    // Two probabilities may be so near that no double lies between them.
    if (threshold < score && (f1 > best_f1 || (f1 == best_f1 && f1 > 0 && nearer))) {
      best = threshold;
      best_f1 = f1;
    }
  }
  return best;
}

std::vector<double> TuneThresholds(const Predictions& p) {
  Check(p.kind == LabelKind::kMultiLabel, "threshold", "only several labels at once have them");
  Check(p.scores.size() == p.logits.size(), "threshold", "expected ", p.logits.size(),
        " labels but got ", p.scores.size());
  const Probabilities probabilities(p.kind, p.num_labels, p.logits, p.rule.temperature);
  std::vector<double> thresholds;
  for (int64_t c = 0; c < p.num_labels; ++c) {
    std::vector<uint8_t> positives;
    for (size_t place = static_cast<size_t>(c); place < p.scores.size();
         place += static_cast<size_t>(p.num_labels)) {
      positives.push_back(p.scores[place] > 0.5f);
    }
    thresholds.push_back(BestThreshold(probabilities.OfLabel(c), positives));
  }
  return thresholds;
}

}  // namespace lathe
