#include "lathe/data/metrics/confident_errors.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/data/metrics/probabilities.h"

namespace lathe {
namespace {

// Returns the probability of the most probable wrong answer of a sample; 0 if all are right.
double WorstAnswer(const Predictions& p, const Probabilities& probabilities,
                   const std::vector<uint8_t>& predicted_labels, int64_t sample) {
  double worst = 0;
  for (int64_t c = 0; c < p.num_labels; ++c) {
    const auto place = static_cast<size_t>(sample * p.num_labels + c);
    const bool predicted = predicted_labels[place] != 0;
    if (predicted == (p.scores[place] > 0.5f)) continue;
    const double probability = probabilities.Of(sample, c);
    worst = std::max(worst, predicted ? probability : 1 - probability);
  }
  return worst;
}

}  // namespace

std::vector<ConfidentError> MostConfidentErrors(const Predictions& p, int64_t limit) {
  const Probabilities probabilities(p.kind, p.num_labels, p.logits, p.rule.temperature);
  const int64_t n = probabilities.num_samples();
  const bool several = p.kind == LabelKind::kMultiLabel;
  Check(several ? p.scores.size() == p.logits.size() : std::ssize(p.classes) == n,
        "confident_errors", "expected labels for each of ", n, " samples");
  const std::vector<int64_t> predicted = ArgMax(p.logits, p.num_labels);
  const std::vector<uint8_t> predicted_labels =
      several ? PredictedLabels(p) : std::vector<uint8_t>();
  std::vector<ConfidentError> errors;
  for (int64_t i = 0; i < n; ++i) {
    const auto place = static_cast<size_t>(i);
    double probability = 0;
    if (several) {
      probability = WorstAnswer(p, probabilities, predicted_labels, i);
    } else if (predicted[place] != p.classes[place]) {
      probability = probabilities.Of(i, predicted[place]);
    }
    if (probability > 0) errors.push_back({.sample = i, .probability = probability});
  }
  std::stable_sort(errors.begin(), errors.end(),
                   [](const auto& a, const auto& b) { return a.probability > b.probability; });
  if (std::ssize(errors) > limit) errors.resize(static_cast<size_t>(limit));
  return errors;
}

}  // namespace lathe
