#include <cmath>
#include <utility>

#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

// One step's constants; those that depend on t alone are worked out in double, as PyTorch does.
struct AdamWStep {
  float decay;  // 1 - lr * weight_decay
  float beta2;
  float rest1, rest2;   // 1 - beta, not the difference of rounded values
  float step_size;      // lr / (1 - beta1^t)
  float inverse_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

void Update(float* p, float* m, float* v, const float* g, int64_t n, const AdamWStep& step) {
  const AdamWStep s = step;
  const float rest1 = s.rest1;
  const float rest2 = s.rest2;
#pragma omp parallel for simd schedule(static) if (n > 16384)
  for (int64_t i = 0; i < n; ++i) {
    const float grad = g[i];
    const float mean = m[i] + rest1 * (grad - m[i]);
    const float square = s.beta2 * v[i] + rest2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    p[i] = p[i] * s.decay - s.step_size * mean / (std::sqrt(square) * s.inverse_bias2 + s.eps);
  }
}

}  // namespace

AdamW::AdamW(std::vector<Parameter> parameters, AdamWOptions options)
    : AdamW(std::vector<ParameterGroup>{{.parameters = std::move(parameters)}}, options) {}

AdamW::AdamW(std::vector<ParameterGroup> groups, AdamWOptions options)
    : Optimizer(std::move(groups), options.lr, options.weight_decay), options_(options) {
  Check(options.beta1 >= 0 && options.beta1 < 1, "AdamW", "beta1 must be in [0, 1) but is ",
        options.beta1);
  Check(options.beta2 >= 0 && options.beta2 < 1, "AdamW", "beta2 must be in [0, 1) but is ",
        options.beta2);
  Check(options.eps >= 0, "AdamW", "eps must be at least 0 but is ", options.eps);
}

void AdamW::Step() {
  const Tensor& values = arena_->values();
  const Tensor& grads = arena_->grads();
  if (!exp_avg_.defined()) {
    exp_avg_ = Tensor::Zeros(values.shape());
    exp_avg_sq_ = Tensor::Zeros(values.shape());
  }
  ++step_count_;
  const double t = static_cast<double>(step_count_);
  for (const Range& range : ranges_) {
    const double lr = lr_[range.group];
    Update(values.data<float>() + range.begin, exp_avg_.data<float>() + range.begin,
           exp_avg_sq_.data<float>() + range.begin, grads.data<float>() + range.begin,
           range.end - range.begin,
           {.decay = static_cast<float>(1 - lr * weight_decay_[range.group]),

            .beta2 = static_cast<float>(options_.beta2),
            .rest1 = static_cast<float>(1 - options_.beta1),
            .rest2 = static_cast<float>(1 - options_.beta2),
            .step_size = static_cast<float>(lr / (1 - std::pow(options_.beta1, t))),
            .inverse_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
            .eps = static_cast<float>(options_.eps)});
  }
  values.impl()->storage->BumpVersion();
}

}  // namespace lathe
