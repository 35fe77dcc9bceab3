// GradUnscaler: what an optimizer does for its GradScaler. It divides gradients by the scale, at
// most once for each of the scaler's passes, and tells the scaler about steps.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "lathe/nn/arena.h"
#include "lathe/optim/grad_scaler.h"

namespace lathe {

class GradUnscaler {
 public:
  // `scaler` may be null, as it is at first.
  void Use(std::shared_ptr<GradScaler> scaler) { scaler_ = std::move(scaler); }
  const std::shared_ptr<GradScaler>& scaler() const { return scaler_; }

  // Returns true if the gradients of the scaler's present pass are not divided yet.
  bool NeedsDivision() const { return scaler_ != nullptr && divided_pass_ != scaler_->num_passes_; }
  // Divides the gradients, which lie on the host, and notes whether one is not finite.
  void DivideOnHost(ParameterArena& arena);
  // Records that the gradients are divided, or that their division is queued.
  void RecordDivision();
  // Returns true if DivideOnHost has last found a gradient that is not finite.
  bool found_inf() const { return found_inf_; }

  // Records a step on the host, which is skipped if found_inf. Needs a scaler.
  void RecordStep(bool found_inf) { scaler_->RecordStep(found_inf); }
  // Records a step that was queued on a device, with an outcome that is not known yet. Needs a
  // scaler.
  void RecordQueuedStep() { scaler_->RecordQueuedStep(); }
  // Records that the gradients were zeroed: none counts as divided any more.
  void RecordZeroedGradients();
  // Moves the scaler's state to `device` and returns it; null without a scaler.
  ScalerState* StateOn(Device device);

 private:
  std::shared_ptr<GradScaler> scaler_;
  bool found_inf_ = false;
  int64_t divided_pass_ = 0;  // the scaler's pass whose gradients are divided
};

}  // namespace lathe
