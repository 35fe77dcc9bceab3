// The result of a training run, for tests that train in two ways and compare.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/optim/graphs/graph_recorder.h"

namespace lathe {

struct Outcome {
  std::vector<double> losses;  // of all steps
  std::vector<float> values;   // of all parameters
  GraphStatistics statistics;
};

// Expects losses within `tolerance` of each other, and values within 20 times that.
inline void ExpectNear(const Outcome& actual, const Outcome& expected, double tolerance) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance) << "step " << i;
  }
  double furthest = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual.values[i])) << i;
    furthest = std::max(furthest, std::fabs(double{actual.values[i]} - expected.values[i]));
  }
  EXPECT_LE(furthest, 20 * tolerance);  // AdamW divides small gradients by their size
}

}  // namespace lathe
