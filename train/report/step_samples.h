// StepSamples: a number of each step, kept as some hundreds of points however long a training is.
//
//   StepSamples losses;
//   losses.Add(1, 0.7);
//   losses.Add(2, 0.5);
//   losses.Points("training");   // x = {1, 2}, y = {0.7, 0.5}
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lathe/train/report/chart.h"

namespace lathe {

class StepSamples {
 public:
  // There are never more points than this. Once there would be, each pair becomes one.
  static constexpr size_t kMostPoints = 400;

  // Adds the value of a step. Values that are not finite, and steps that don't come after those
  // before, are left out.
  void Add(int64_t step, double value);
  // Returns the points, each the mean of as many values as the others but the last one.
  Series Points(const std::string& name) const;

 private:
  struct Sum {
    double steps = 0, values = 0;
    int64_t count = 0;
  };

  std::vector<Sum> sums_;
  int64_t values_of_a_point_ = 1, last_step_ = -1;
};

}  // namespace lathe
