#include "lathe/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe {

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  Check(scale_ > 0 && std::isfinite(scale_), "grad_scaler",
        "init_scale must be a positive float32 but is ", options.init_scale);
  Check(options.growth_factor > 1, "grad_scaler", "growth_factor must be above 1 but is ",
        options.growth_factor);
  Check(options.backoff_factor > 0 && options.backoff_factor < 1, "grad_scaler",
        "backoff_factor must be between 0 and 1 but is ", options.backoff_factor);
  Check(options.growth_interval > 0, "grad_scaler", "growth_interval must be above 0 but is ",
        options.growth_interval);
}

float GradScaler::scale() const {
  Read();
  return scale_;
}

bool GradScaler::step_was_skipped() const {
  Read();
  return step_was_skipped_;
}

int64_t GradScaler::num_skipped_steps() const {
  Read();
  return num_skipped_steps_;
}

lathe::StateDict GradScaler::StateDict() const {
  Read();
  lathe::StateDict state;
  state.values = {{"scale", scale_},
                  {"growth_tracker", growth_tracker_},
                  {"stepped", stepped_},
                  {"step_was_skipped", step_was_skipped_},
                  {"num_skipped_steps", num_skipped_steps_}};
  return state;
}

void GradScaler::LoadStateDict(const lathe::StateDict& state) {
  MoveToHost();
  scale_ = state.Get<float>("grad_scaler", "scale");
  growth_tracker_ = state.Get<int64_t>("grad_scaler", "growth_tracker");
  stepped_ = state.Get<bool>("grad_scaler", "stepped");
  step_was_skipped_ = state.Get<bool>("grad_scaler", "step_was_skipped");
  num_skipped_steps_ = state.Get<int64_t>("grad_scaler", "num_skipped_steps");
  Check(scale_ > 0 && std::isfinite(scale_), "grad_scaler", "the state's scale is ", scale_);
}

// DeviceOptimizerKernels::begin_pass does the same on a device.
void GradScaler::Update(bool found_inf) {
  MoveToHost();
  if (found_inf) {
    // The scale must not become 0, because gradients are divided by it.
    scale_ = std::max(scale_ * static_cast<float>(options_.backoff_factor),
                      std::numeric_limits<float>::min());
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const float larger = scale_ * static_cast<float>(options_.growth_factor);
    if (std::isfinite(larger)) scale_ = larger;
    growth_tracker_ = 0;
  }
}

void GradScaler::BeginPass() {
  Check(!unscaled_, "grad_scaler",
        "clipping or GradNorm has already divided the gradients by the scale; call Step or "
        "ZeroGrad before the next Backward");
  ++num_passes_;
  unread_ = true;
}

void GradScaler::ScaleLossGradient(Tensor gradient) {
  if (!gradient.device().is_cpu()) {
    ScalerState* const state = StateOn(gradient.device());
    const ScalerRule rule = {.growth_factor = static_cast<float>(options_.growth_factor),
                             .backoff_factor = static_cast<float>(options_.backoff_factor),
                             .growth_interval = options_.growth_interval};
    DeviceKernels<DeviceOptimizerKernels>().begin_pass(state, rule);
    DeviceKernels<TensorKernels>().scale_by(gradient.raw_data(), gradient.dtype(), &state->scale,
                                            gradient.numel());
    return;
  }
  MoveToHost();
  if (std::exchange(stepped_, false)) Update(step_was_skipped_);
  const Tensor wide = gradient.To(DType::kF64);
  for (double& value : wide.values<double>()) value *= scale_;
  if (wide.impl() != gradient.impl()) gradient.CopyFrom(wide);
}

void GradScaler::Backward(const Tensor& loss, double factor) {
  BeginPass();
  const Tensor gradient = Tensor::Full(loss.shape(), factor, loss.dtype(), loss.device());
  ScaleLossGradient(gradient);
  lathe::Backward(loss, gradient);
}

void GradScaler::RecordStep(bool found_inf) {
  unscaled_ = false;
  // If several optimizers make a step after one pass, one skipped step counts for all.
  step_was_skipped_ = found_inf || (stepped_ && step_was_skipped_);
  stepped_ = true;
  num_skipped_steps_ += found_inf;
}

void GradScaler::PrepareFor(Device device) { StateOn(device); }

ScalerState* GradScaler::StateOn(Device device) {
  if (on_device_ && state_.device() != device) MoveToHost();
  if (!state_.defined() || state_.device() != device) {
    const AllocationTag allocation_tag = AllocationTag::Buffer("the loss scale");
    state_ = Tensor::Empty({int64_t{sizeof(ScalerState)}}, DType::kU8, device);
  }
  if (!std::exchange(on_device_, true)) {
    const ScalerState now = {.scale = scale_,
                             .stepped = stepped_,
                             .skipped = step_was_skipped_,
                             .growth_tracker = growth_tracker_,
                             .num_skipped = num_skipped_steps_};
    BackendOf(device).CopyToDevice(state_.raw_data(), &now, sizeof(now));
  }
  return static_cast<ScalerState*>(state_.raw_data());
}

void GradScaler::MoveToHost() {
  Read();
  on_device_ = false;
}

void GradScaler::Read() const {
  if (!std::exchange(unread_, false) || !on_device_) return;
  ScalerState now;
  BackendOf(state_.device()).CopyToHost(&now, state_.raw_data(), sizeof(now));
  scale_ = now.scale;
  stepped_ = now.stepped != 0;
  step_was_skipped_ = now.skipped != 0;
  growth_tracker_ = now.growth_tracker;
  num_skipped_steps_ = now.num_skipped;
}

}  // namespace lathe
