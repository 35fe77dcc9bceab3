#include <algorithm>
#include <cmath>
#include <utility>

#include "lathe/core/cpu/optimizer.h"
#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

size_t Blocks(ElementRange range) {
  return static_cast<size_t>((range.size() + cpu::kAdamWBlock - 1) / cpu::kAdamWBlock);
}
size_t Blocks(const std::vector<ElementRange>& ranges) {
  size_t blocks = 0;
  for (const ElementRange& range : ranges) blocks += Blocks(range);
  return blocks;
}

void Narrow(BFloat16* to, const float* from, int64_t n) {
  constexpr int64_t kMost = 16384;  // elements: what threads share out
#pragma omp parallel for schedule(static) if (n > kMost)
  for (int64_t i = 0; i < n; i += kMost) {
    cpu::Kernels<cpu::ConvertKernels>().to_bf16(to + i, from + i, std::min(kMost, n - i));
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

NamedSettings AdamW::Settings() const {
  NamedSettings settings = Optimizer::Settings();
  settings.insert(settings.end(), {{"optimizer", "AdamW"},
                                   {"beta1", ExactText(options_.beta1)},
                                   {"beta2", ExactText(options_.beta2)},
                                   {"eps", ExactText(options_.eps)}});
  return settings;
}

// Any moment may be there: another process may have had it.
void AdamW::OnNewOwn(size_t range) {
  if (exp_avg_.defined()) active_[range].assign(Blocks(ranges_[range].own), 1);
}

void AdamW::UpdateParameters() {
  const Tensor& values = arena_->values();
  if (!exp_avg_.defined()) {
    exp_avg_ = arena_->NewBuffer();
    exp_avg_sq_ = arena_->NewBuffer();
    for (const Range& range : ranges_) active_.emplace_back(Blocks(range.own));
  }
  if (values.device() != Device{}) {
    return UpdateOnDevice(
        {.rule = {.adamw = true, .beta1 = options_.beta1, .beta2 = options_.beta2},
         .adamw = {.rest1 = static_cast<float>(1 - options_.beta1),
                   .beta2 = static_cast<float>(options_.beta2),
                   .rest2 = static_cast<float>(1 - options_.beta2),
                   .eps = static_cast<float>(options_.eps)},
         .m = exp_avg_,
         .v = exp_avg_sq_});
  }
  const Tensor& grads = arena_->GradsToRead(/*scaled=*/false);
  int64_t* const steps = steps_.data<int64_t>();
  const auto& kernels = cpu::Kernels<cpu::OptimizerKernels>();
  const int64_t version = values.impl()->storage->version();
  std::vector<const Range*> narrowed;  // whose bfloat16 copies are kept up to date
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (!range.parameter.requires_grad()) continue;
    const double t = static_cast<double>(++steps[i]);
    const double lr = lr_[range.group];
    TensorImpl& parameter = *range.parameter.impl();
    BFloat16* narrow = nullptr;
    if (parameter.low_precision != nullptr && parameter.low_precision->dtype == DType::kBF16 &&
        parameter.low_precision_version == version) {
      narrow = Tensor(parameter.low_precision).data<BFloat16>();
      narrowed.push_back(&range);
    }
    const float decay = static_cast<float>(1 - lr * weight_decay_[range.group]);
    // A part of a parameter that never had a gradient, such as the rows of words that never came
    // up, stays as it is, unless it decays.
    const bool passes_over = decay == 1 && options_.eps > 0;
    if (!passes_over) std::fill(active_[i].begin(), active_[i].end(), 1);
    const int64_t range_end = range.begin + range.parameter.numel();  // without the gap
    const ElementRange whole = {range.begin, range.end};
    const bool marked = passes_over && parameter.grad_rows.has_value() &&
                        range.own == std::vector<ElementRange>{whole};
    if (marked) {
      for (const int32_t row : *parameter.grad_rows) {
        const int64_t width = range.parameter.numel() / range.parameter.dim(0);
        const int64_t first_block = row * width / cpu::kAdamWBlock;
        const int64_t last = ((row + 1) * width - 1) / cpu::kAdamWBlock;
        std::fill(active_[i].begin() + first_block, active_[i].begin() + last + 1, 1);
      }
    }
    const cpu::AdamWStep step = {
        .decay = decay,
        .beta2 = static_cast<float>(options_.beta2),
        .rest1 = static_cast<float>(1 - options_.beta1),
        .rest2 = static_cast<float>(1 - options_.beta2),
        .step_size = static_cast<float>(lr / (1 - std::pow(options_.beta1, t))),
        .inverse_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
        .eps = static_cast<float>(options_.eps),
        .grad_scale = parameter.grad_scale};
    uint8_t* active = active_[i].data();
    for (const ElementRange& own : range.own) {
      kernels.adamw(values.data<float>() + own.begin, exp_avg_.data<float>() + own.begin,
                    exp_avg_sq_.data<float>() + own.begin,
                    narrow == nullptr ? nullptr : narrow + (own.begin - range.begin), active,
                    marked, grads.data<float>() + own.begin,
                    std::min(own.end, range_end) - own.begin, step);
      active += Blocks(own);
    }
  }
  GatherUpdates();
  values.impl()->storage->BumpVersion();
  for (const Range* range : narrowed) {
    TensorImpl& parameter = *range->parameter.impl();
    parameter.low_precision_version = values.impl()->storage->version();
    if (shares_ == nullptr) continue;
    BFloat16* const narrow = Tensor(parameter.low_precision).data<BFloat16>();
    const ElementRange all = {range->begin, range->begin + range->parameter.numel()};
    for (const ElementRange& other : Within(all, shares_->others)) {
      Narrow(narrow + (other.begin - all.begin), values.data<float>() + other.begin, other.size());
    }
  }
}

}  // namespace lathe
