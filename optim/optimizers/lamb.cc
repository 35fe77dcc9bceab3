// LAMB's update on the host.
#include <algorithm>
#include <vector>

#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizers/optimizers.h"

namespace lathe {
namespace {

constexpr int64_t kBlock = 4096;  // elements whose squares are added up together

// The parts of the arena of one parameter.
struct LambMemory {
  float *p, *m, *v;
  const float* g;
  int64_t n;
};

// Updates the moments and returns the factor of the step, in an order that doesn't depend on the
// number of threads.
double UpdateMoments(const LambMemory& x, const update_rules::Lamb& rule,
                     const DeviceRates& rates) {
  const int64_t blocks = (x.n + kBlock - 1) / kBlock;
  std::vector<double> values(static_cast<size_t>(blocks)), directions(values.size());
#pragma omp parallel for schedule(static) if (x.n > 16384)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kBlock, end = std::min(begin + kBlock, x.n);
    double of_values = 0, of_directions = 0;
#pragma omp simd reduction(+ : of_values, of_directions)
    for (int64_t i = begin; i < end; ++i) {
      float m = x.m[i], v = x.v[i];
      rule.UpdateMoments(m, v, x.g[i]);
      x.m[i] = m;
      x.v[i] = v;
      const double p = x.p[i], direction = rule.Direction(x.p[i], m, v, rates);
      of_values += p * p;
      of_directions += direction * direction;
    }
    values[block] = of_values;
    directions[block] = of_directions;
  }
  double value = 0, direction = 0;
  for (const double part : values) value += part;
  for (const double part : directions) direction += part;
  return update_rules::Lamb::Ratio(value, direction);
}

void UpdateValues(const LambMemory& x, const update_rules::Lamb& rule_of_all,
                  const DeviceRates& rates_of_all, float step) {
  const update_rules::Lamb rule = rule_of_all;
  const DeviceRates rates = rates_of_all;
#pragma omp parallel for simd schedule(static) if (parallel : x.n > 16384)
  for (int64_t i = 0; i < x.n; ++i) {
    x.p[i] -= step * rule.Direction(x.p[i], x.m[i], x.v[i], rates);
  }
}

}  // namespace

void Lamb::AllocateState() {
  if (exp_avg_.defined()) return;
  exp_avg_ = arena_->NewBuffer();
  exp_avg_sq_ = arena_->NewBuffer();
}

void Lamb::UpdateParameters() {
  AllocateState();
  const Tensor& values = arena_->values();
  if (!values.device().is_cpu()) {
    return UpdateOnDevice({.rule = rates_, .update = rule_, .m = exp_avg_, .v = exp_avg_sq_});
  }
  const Tensor& grads = arena_->GradsToRead();
  int64_t* const steps = steps_.data<int64_t>();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (!range.parameter.requires_grad()) continue;
    const DeviceRates rates = update_rules::RatesOf(
        rates_, lr(range.group), weight_decay_[range.group], static_cast<double>(++steps[i]));
    const LambMemory memory = {.p = values.data<float>() + range.begin,
                               .m = exp_avg_.data<float>() + range.begin,
                               .v = exp_avg_sq_.data<float>() + range.begin,
                               .g = grads.data<float>() + range.begin,
                               .n = range.parameter.numel()};
    const auto ratio = static_cast<float>(UpdateMoments(memory, rule_, rates));
    UpdateValues(memory, rule_, rates, rates.step_size * ratio);
  }
  values.impl()->storage->BumpVersion();
}

}  // namespace lathe
