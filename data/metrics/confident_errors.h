// The wrong predictions that a classifier was most sure of. They often show labels that are wrong.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/data/metrics/metrics.h"

namespace lathe {

struct ConfidentError {
  int64_t sample = 0;
  // The probability of the predicted class. With several labels one or more of them have a wrong
  // answer, yes or no. This is the probability of the most probable wrong answer.
  double probability = 0;
};

// Returns the samples with a wrong prediction, the most probable first, at most `limit`. Equal ones
// come in the order of the samples. Throws for regressions and for sizes that don't fit.
std::vector<ConfidentError> MostConfidentErrors(const Predictions& predictions, int64_t limit);

}  // namespace lathe
