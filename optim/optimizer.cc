#include "lathe/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lathe/core/cpu/optimizer.h"

namespace lathe {
namespace {

// The groups' parameters in the order of registration, if they lie in an arena already: it is kept
// then instead of copied, whatever way the groups divide it.
std::vector<Parameter> InArenaOrder(const std::vector<ParameterGroup>& groups) {
  std::vector<Parameter> all;
  for (const ParameterGroup& group : groups) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  const bool one_storage = std::all_of(all.begin(), all.end(), [&](const Parameter& p) {
    return p.tensor.allocated() && p.tensor.impl()->storage == all[0].tensor.impl()->storage;
  });
  if (one_storage) {
    std::sort(all.begin(), all.end(), [](const Parameter& a, const Parameter& b) {
      return a.tensor.impl()->offset > b.tensor.impl()->offset;
    });
  }
  return all;
}

}  // namespace

std::vector<ParameterGroup> DecayGroups(const std::vector<Parameter>& parameters,
                                        double weight_decay) {
  ParameterGroup decayed, others;
  decayed.weight_decay = weight_decay;
  others.weight_decay = 0;
  for (const Parameter& parameter : parameters) {
    (parameter.decays ? decayed : others).parameters.push_back(parameter);
  }
  return {std::move(decayed), std::move(others)};
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups, double default_lr,
                     double default_weight_decay) {
  Check(default_lr >= 0, "optimizer", "lr must be at least 0 but is ", default_lr);
  Check(default_weight_decay >= 0, "optimizer", "weight_decay must be at least 0 but is ",
        default_weight_decay);
  std::map<const TensorImpl*, int> group_of;
  for (size_t g = 0; g < groups.size(); ++g) {
    const ParameterGroup& group = groups[g];
    lr_.push_back(group.lr < 0 ? default_lr : group.lr);
    weight_decay_.push_back(group.weight_decay < 0 ? default_weight_decay : group.weight_decay);
    for (const Parameter& parameter : group.parameters) {
      Check(group_of.emplace(parameter.tensor.impl().get(), static_cast<int>(g)).second,
            "optimizer", "parameter ", parameter.name, " is given twice");
    }
  }
  initial_lr_ = lr_;
  Check(!group_of.empty(), "optimizer", "no parameters");
  for (const ParameterGroup& group : groups) {
    for (const Parameter& parameter : group.parameters) {
      if (parameter.tensor.allocated()) continue;
      throw InvalidArgument("[optimizer] parameter " + parameter.name + " has no values yet",
                            "initialise or load the model first");
    }
  }
  arena_ = ParameterArena::Of(InArenaOrder(groups));
  arena_->GradsToRead();  // now, lest the first backward pass make a buffer for each

  const auto& entries = arena_->entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t begin = entries[i].offset;
    // The gap after a parameter belongs to it: an update leaves its zeros as they are.
    const int64_t end = i + 1 < entries.size() ? entries[i + 1].offset : arena_->values().numel();
    const Tensor& parameter = entries[i].parameter.tensor;
    ranges_.push_back({begin, end, group_of.at(parameter.impl().get()), parameter});
  }
}

namespace {

// The gradients without the rows that are known to be 0.
std::vector<cpu::Stretch> GradStretches(Optimizer& optimizer) {
  constexpr int64_t kMost = 16384;  // elements: what threads share out
  float* grads = optimizer.arena().GradsToRead().data<float>();
  std::vector<cpu::Stretch> stretches;
  const auto add = [&](int64_t begin, int64_t n) {
    for (; n > 0; begin += kMost, n -= kMost) {
      stretches.push_back({grads + begin, std::min(n, kMost)});
    }
  };
  for (const ParameterArena::Entry& entry : optimizer.arena().entries()) {
    const Tensor& p = entry.parameter.tensor;
    if (const auto& rows = p.impl()->grad_rows) {
      for (const int32_t row : *rows) {
        const int64_t width = p.numel() / p.dim(0);
        add(entry.offset + row * width, width);
      }
    } else {
      add(entry.offset, p.numel());
    }
  }
  return stretches;
}

float NormOf(const std::vector<cpu::Stretch>& stretches) {
  const auto& kernels = cpu::Kernels<cpu::OptimizerKernels>();
  return static_cast<float>(
      std::sqrt(kernels.sum_of_squares(stretches.data(), std::ssize(stretches))));
}

}  // namespace

Tensor GradNorm(Optimizer& optimizer) { return Tensor::Full({}, NormOf(GradStretches(optimizer))); }

Tensor ClipGradNorm(Optimizer& optimizer, double max_norm) {
  Check(max_norm >= 0, "ClipGradNorm", "max_norm must be at least 0 but is ", max_norm);
  const std::vector<cpu::Stretch> stretches = GradStretches(optimizer);
  const float norm = NormOf(stretches);
  const float ratio = static_cast<float>(max_norm) / (norm + 1e-6f);
  // Only noted: whoever reads the gradients multiplies. A ratio that is NaN spoils all of them, so
  // that nobody takes them for clipped.
  if (!(ratio >= 1)) {
    for (const ParameterArena::Entry& entry : optimizer.arena().entries()) {
      entry.parameter.tensor.impl()->grad_scale = ratio;
    }
  }
  return Tensor::Full({}, norm);
}

void ClipGradValue(Optimizer& optimizer, double max_value) {
  Check(max_value >= 0, "ClipGradValue", "max_value must be at least 0 but is ", max_value);
  const Tensor& grads = optimizer.arena().grads();
  const float limit = static_cast<float>(max_value);
  float* g = grads.data<float>();
  const int64_t n = grads.numel();
#pragma omp parallel for simd schedule(static) if (n > 16384)
  for (int64_t i = 0; i < n; ++i) {
    const float low = g[i] < -limit ? -limit : g[i];  // a NaN stays one
    g[i] = low > limit ? limit : low;
  }
}

}  // namespace lathe
