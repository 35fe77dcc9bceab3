#include "lathe/optim/optimizers/elementwise_optimizer.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <variant>

#include "lathe/optim/device_update.h"

namespace lathe {
namespace {

using update_rules::kMaxMoments;

// Updates n elements. moments: null for those that are not kept.
template <typename Rule>
void UpdateElements(const Rule& rule_of_all, const DeviceRates& rates_of_all, float* p,
                    const std::array<float*, kMaxMoments>& moments, const float* g, int64_t n) {
  constexpr int64_t kBlock = 256;
#pragma omp parallel for schedule(static) if (n > 16384)
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const Rule rule = rule_of_all;
    const DeviceRates rates = rates_of_all;
    const int64_t count = std::min(kBlock, n - begin);
    float missing[Rule::kMoments][kBlock];  // stands in for a moment that is not kept
    float* kept[Rule::kMoments];
    for (int m = 0; m < Rule::kMoments; ++m) {
      kept[m] = moments[m] == nullptr ? missing[m] : moments[m] + begin;
      if (moments[m] == nullptr) std::fill_n(missing[m], count, 0.0f);
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      float value = p[begin + i], of_element[kMaxMoments] = {};
      for (int m = 0; m < Rule::kMoments; ++m) of_element[m] = kept[m][i];
      rule(value, of_element, g[begin + i], rates);
      for (int m = 0; m < Rule::kMoments; ++m) kept[m][i] = of_element[m];
      p[begin + i] = value;
    }
  }
}

}  // namespace

ElementwiseOptimizer::ElementwiseOptimizer(std::vector<ParameterGroup> groups, double lr,
                                           double weight_decay, Method method)
    : Optimizer(std::move(groups), lr, weight_decay), method_(std::move(method)) {}

NamedSettings ElementwiseOptimizer::Settings() const {
  NamedSettings settings = Optimizer::Settings();
  settings.insert(settings.end(), method_.settings.begin(), method_.settings.end());
  return settings;
}

std::vector<Tensor*> ElementwiseOptimizer::StateBuffers() {
  std::vector<Tensor*> buffers;
  for (size_t m = 0; m < method_.moments.size(); ++m) {
    if (!method_.moments[m].empty()) buffers.push_back(&moments_[m]);
  }
  return buffers;
}

std::vector<std::string> ElementwiseOptimizer::StateNames() const {
  std::vector<std::string> names;
  for (const std::string& name : method_.moments) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

void ElementwiseOptimizer::AllocateState() {
  for (Tensor* buffer : StateBuffers()) {
    if (buffer->defined()) continue;
    *buffer = arena_->NewBuffer();
    if (method_.initial != 0) buffer->Fill(method_.initial);
  }
}

void ElementwiseOptimizer::UpdateHostValues() {
  const Tensor& values = arena_->values();
  const Tensor& grads = arena_->GradsToRead();
  int64_t* const steps = steps_.data<int64_t>();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (!range.parameter.requires_grad()) continue;
    const DeviceRates rates =
        update_rules::RatesOf(method_.rates, lr(range.group), weight_decay_[range.group],
                              static_cast<double>(++steps[i]));
    // Without the gap, whose zeros could become NaN.
    const int64_t end = range.begin + range.parameter.numel();
    for (const ElementRange& own : range.own) {
      std::array<float*, kMaxMoments> moments = {};
      for (int m = 0; m < kMaxMoments; ++m) {
        if (moments_[m].defined()) moments[m] = moments_[m].data<float>() + own.begin;
      }
      std::visit(
          [&]<typename Rule>(const Rule& rule) {
            if constexpr (std::is_invocable_v<Rule, float&, float(&)[kMaxMoments], float,
                                              const DeviceRates&>) {
              UpdateElements(rule, rates, values.data<float>() + own.begin, moments,
                             grads.data<float>() + own.begin, std::min(own.end, end) - own.begin);
            }
          },
          method_.rule);
    }
  }
  GatherUpdates({AllElements()});
  values.impl()->storage->BumpVersion();
}

void ElementwiseOptimizer::UpdateParameters() {
  AllocateState();
  if (arena_->values().device().is_cpu()) return UpdateHostValues();
  UpdateOnDevice({.rule = method_.rates,
                  .update = method_.rule,
                  .m = moments_[0],
                  .v = moments_[1],
                  .last = moments_[2]});
}

}  // namespace lathe
