#include <cmath>
#include <utility>

#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

struct SGDStep {
  float lr, weight_decay, momentum;
  float take;  // the share of the gradient that enters the buffer: 1 - dampening
  bool nesterov;
};

void Update(float* p, const float* g, int64_t n, const SGDStep& step) {
  const SGDStep s = step;
#pragma omp parallel for simd schedule(static) if (parallel : n > 16384)
  for (int64_t i = 0; i < n; ++i) {
    p[i] -= s.lr * (g[i] + s.weight_decay * p[i]);
  }
}

void UpdateWithMomentum(float* p, float* buffer, const float* g, int64_t n, const SGDStep& step) {
  const SGDStep s = step;
  // b = momentum * b + take * d. Nesterov's step is along d + momentum * b, the plain one along b.
  const float of_gradient = s.nesterov ? 1.0f : 0.0f;
  const float of_buffer = s.nesterov ? s.momentum : 1.0f;
#pragma omp parallel for simd schedule(static) if (parallel : n > 16384)
  for (int64_t i = 0; i < n; ++i) {
    const float d = g[i] + s.weight_decay * p[i];
    const float b = s.momentum * buffer[i] + s.take * d;
    buffer[i] = b;
    p[i] -= s.lr * (of_gradient * d + of_buffer * b);
  }
}

}  // namespace

SGD::SGD(std::vector<Parameter> parameters, SGDOptions options)
    : SGD(std::vector<ParameterGroup>{{.parameters = std::move(parameters)}}, options) {}

SGD::SGD(std::vector<ParameterGroup> groups, SGDOptions options)
    : Optimizer(std::move(groups), options.lr, options.weight_decay), options_(options) {
  Check(options.momentum >= 0, "SGD", "momentum must be at least 0 but is ", options.momentum);
  Check(std::isfinite(options.dampening), "SGD", "dampening must be finite but is ",
        options.dampening);
  Check(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "SGD",
        "nesterov needs a momentum and no dampening");
}

NamedSettings SGD::Settings() const {
  NamedSettings settings = Optimizer::Settings();
  settings.insert(settings.end(), {{"optimizer", "SGD"},
                                   {"momentum", ExactText(options_.momentum)},
                                   {"dampening", ExactText(options_.dampening)},
                                   {"nesterov", options_.nesterov ? "true" : "false"}});
  return settings;
}

void SGD::AllocateState() {
  if (options_.momentum != 0 && !momentum_.defined()) {
    momentum_ = arena_->NewBuffer();
  }
}

void SGD::UpdateParameters() {
  const Tensor& values = arena_->values();
  AllocateState();
  if (!values.device().is_cpu()) {
    return UpdateOnDevice(
        {.rule = {.dampening = options_.dampening},
         .sgd = {.momentum = static_cast<float>(options_.momentum), .nesterov = options_.nesterov},
         .m = momentum_});
  }
  const Tensor& grads = arena_->GradsToRead();
  int64_t* const steps = steps_.data<int64_t>();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (!range.parameter.requires_grad()) continue;
    // A parameter's first gradient enters its buffer whole, whatever the dampening, as in PyTorch.
    const double take = ++steps[i] > 1 ? 1 - options_.dampening : 1;
    const SGDStep step = {.lr = static_cast<float>(lr(range.group)),
                          .weight_decay = static_cast<float>(weight_decay_[range.group]),
                          .momentum = static_cast<float>(options_.momentum),
                          .take = static_cast<float>(take),
                          .nesterov = options_.nesterov};
    for (const ElementRange& own : range.own) {
      float* p = values.data<float>() + own.begin;
      const float* g = grads.data<float>() + own.begin;
      if (momentum_.defined()) {
        UpdateWithMomentum(p, momentum_.data<float>() + own.begin, g, own.size(), step);
      } else {
        Update(p, g, own.size(), step);
      }
    }
  }
  GatherUpdates({AllElements()});
  values.impl()->storage->BumpVersion();
}

}  // namespace lathe
