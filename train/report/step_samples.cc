#include "lathe/train/report/step_samples.h"

#include <cmath>

namespace lathe {

void StepSamples::Add(int64_t step, double value) {
  if (step <= last_step_ || !std::isfinite(value)) return;
  last_step_ = step;
  if (sums_.empty() || sums_.back().count == values_of_a_point_) {
    if (sums_.size() == kMostPoints) {
      for (size_t i = 0; i < kMostPoints / 2; ++i) {
        const Sum &a = sums_[2 * i], &b = sums_[2 * i + 1];
        sums_[i] = {a.steps + b.steps, a.values + b.values, a.count + b.count};
      }
      sums_.resize(kMostPoints / 2);
      values_of_a_point_ *= 2;
    }
    sums_.emplace_back();
  }
  Sum& last = sums_.back();
  last.steps += static_cast<double>(step);
  last.values += value;
  ++last.count;
}

Series StepSamples::Points(const std::string& name) const {
  Series series{.name = name, .x = {}, .y = {}};
  for (const Sum& sum : sums_) {
    series.x.push_back(sum.steps / static_cast<double>(sum.count));
    series.y.push_back(sum.values / static_cast<double>(sum.count));
  }
  return series;
}

}  // namespace lathe
