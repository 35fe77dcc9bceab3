#include "lathe/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/error.h"

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

void GradScaler::Update(bool found_inf) {
  if (found_inf) {
    // Never 0, which nothing can be divided by.
    scale_ = std::max(scale_ * static_cast<float>(options_.backoff_factor),
                      std::numeric_limits<float>::min());
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const float larger = scale_ * static_cast<float>(options_.growth_factor);
    if (std::isfinite(larger)) scale_ = larger;
    growth_tracker_ = 0;
  }
}

double GradScaler::BeginPass(double factor) {
  Check(!unscaled_, "grad_scaler",
        "gradients were divided by the scale already, by clipping or GradNorm; call Step or "
        "ZeroGrad before the next Backward");
  if (std::exchange(stepped_, false)) Update(step_was_skipped_);
  ++num_passes_;
  return factor * scale_;
}

void GradScaler::Backward(const Tensor& loss, double factor) {
  lathe::Backward(loss, Tensor::Full(loss.shape(), BeginPass(factor), loss.dtype(), loss.device()));
}

void GradScaler::StepIsDue(bool found_inf) {
  unscaled_ = false;
  // Of several optimizers that make a step with the same pass, any.
  step_was_skipped_ = found_inf || (stepped_ && step_was_skipped_);
  stepped_ = true;
  num_skipped_steps_ += found_inf;
}

}  // namespace lathe
