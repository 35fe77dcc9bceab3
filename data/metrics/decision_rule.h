// DecisionRule: how a classifier's logits become probabilities and predictions.
#pragma once

#include <vector>

namespace lathe {

struct DecisionRule {
  // Logits are divided by it before they become probabilities: Guo et al., "On Calibration of
  // Modern Neural Networks" (2017), section 4.2. It changes no prediction of a single label.
  double temperature = 1;
  // For several labels at once: a label is predicted if its probability is above its threshold.
  // [num_labels], or empty for one half each.
  std::vector<double> thresholds = {};

  bool operator==(const DecisionRule&) const = default;
};

}  // namespace lathe
