#include "lathe/optim/grad_unscaler.h"

#include <cmath>

namespace lathe {

void GradUnscaler::DivideOnHost(ParameterArena& arena) {
  // Rows without a gradient hold zeros, which the division leaves as they are.
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  found_inf_ = false;
  const float inverse = 1 / scaler_->scale();
  for (float& g : grads.values<float>()) {
    g *= inverse;
    if (!std::isfinite(g)) found_inf_ = true;
  }
}

void GradUnscaler::RecordDivision() {
  divided_pass_ = scaler_->num_passes_;
  scaler_->unscaled_ = true;
}

void GradUnscaler::RecordZeroedGradients() {
  if (scaler_ != nullptr) scaler_->unscaled_ = false;
}

ScalerState* GradUnscaler::StateOn(Device device) {
  return scaler_ == nullptr ? nullptr : scaler_->StateOn(device);
}

}  // namespace lathe
