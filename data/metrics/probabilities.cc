#include "lathe/data/metrics/probabilities.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// Returns log(1 + exp(x)) without overflow.
double SoftPlus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

Probabilities::Probabilities(LabelKind kind, int64_t num_labels, std::span<const float> logits,
                             double temperature)
    : kind_(kind),
      num_labels_(num_labels),
      num_samples_(0),
      logits_(logits),
      temperature_(temperature) {
  Check(kind != LabelKind::kRegression, "probabilities", "a regression has none");
  Check(num_labels > 0 && logits.size() % static_cast<size_t>(num_labels) == 0, "probabilities",
        logits.size(), " logits do not make whole rows of ", num_labels);
  num_samples_ = static_cast<int64_t>(logits.size()) / num_labels;
  if (kind != LabelKind::kSingleLabel) return;
  for (int64_t i = 0; i < num_samples_; ++i) {
    const auto row = logits.subspan(static_cast<size_t>(i * num_labels), num_labels);
    const double largest = *std::max_element(row.begin(), row.end()) / temperature;
    double sum = 0;
    for (const float logit : row) sum += std::exp(logit / temperature - largest);
    largest_.push_back(largest);
    sums_.push_back(sum);
  }
}

double Probabilities::Of(int64_t sample, int64_t label) const {
  const double logit = Logit(sample, label);
  if (kind_ == LabelKind::kMultiLabel) return 1 / (1 + std::exp(-logit));
  const auto i = static_cast<size_t>(sample);
  return std::exp(logit - largest_[i]) / sums_[i];
}

double Probabilities::NegativeLog(int64_t sample, int64_t label) const {
  const double logit = Logit(sample, label);
  if (kind_ == LabelKind::kMultiLabel) return SoftPlus(-logit);
  const auto i = static_cast<size_t>(sample);
  return largest_[i] + std::log(sums_[i]) - logit;
}

double Probabilities::NegativeLogOfAbsence(int64_t sample, int64_t label) const {
  Check(kind_ == LabelKind::kMultiLabel, "probabilities", "one of several classes is never absent");
  return SoftPlus(Logit(sample, label));
}

std::vector<double> Probabilities::OfLabel(int64_t label) const {
  std::vector<double> values(static_cast<size_t>(num_samples_));
  for (int64_t i = 0; i < num_samples_; ++i) values[static_cast<size_t>(i)] = Of(i, label);
  return values;
}

std::vector<double> Probabilities::OfSample(int64_t sample) const {
  std::vector<double> values(static_cast<size_t>(num_labels_));
  for (int64_t c = 0; c < num_labels_; ++c) values[static_cast<size_t>(c)] = Of(sample, c);
  return values;
}

}  // namespace lathe
