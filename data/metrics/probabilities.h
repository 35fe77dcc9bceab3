// Probabilities of labels, from a classifier's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lathe/data/datasets/label_set.h"

namespace lathe {

// The probabilities of all labels for n samples. They are computed when they are asked for, so that
// a report of many classes needs no second [n, num_labels] array. All are in double.
//
//   Probabilities probabilities(LabelKind::kSingleLabel, 3, logits);
//   double p = probabilities.Of(sample, label);
//
// A single label's are the softmax of a sample's logits, several labels' the sigmoid of each. Equal
// rows of logits give equal probabilities, and so do rows that differ by a constant.
class Probabilities {
 public:
  // `logits` are [n, num_labels] and must outlive this object; they are divided by the temperature.
  // Throws for regressions, whose outputs are no probabilities, and for rows that are not whole.
  Probabilities(LabelKind kind, int64_t num_labels, std::span<const float> logits,
                double temperature = 1);

  int64_t num_samples() const { return num_samples_; }
  double Of(int64_t sample, int64_t label) const;
  // Returns -log of the label's probability, also where the probability itself rounds to 0.
  double NegativeLog(int64_t sample, int64_t label) const;
  // Returns -log of the probability that the sample does not have the label. For several labels.
  double NegativeLogOfAbsence(int64_t sample, int64_t label) const;
  // Returns the probabilities of one label for all samples, or of all labels for one sample.
  std::vector<double> OfLabel(int64_t label) const;
  std::vector<double> OfSample(int64_t sample) const;

 private:
  double Logit(int64_t sample, int64_t label) const {
    return logits_[static_cast<size_t>(sample * num_labels_ + label)] / temperature_;
  }

  LabelKind kind_;
  int64_t num_labels_, num_samples_;
  std::span<const float> logits_;
  double temperature_;
  // The softmax of a single label needs each sample's largest logit, and the sum of exp(logit -
  // largest). Both are empty for several labels.
  std::vector<double> largest_, sums_;
};

}  // namespace lathe
