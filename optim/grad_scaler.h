// Loss scaling for float16, in which gradients below 6e-8 would be 0 (Micikevicius et al. 2018).
// The loss's gradient is multiplied by a scale. Parameters' gradients are divided by it before
// anything uses them. A step whose gradients are not finite is skipped, and the scale is lowered.
// The rule and its defaults are those of PyTorch's GradScaler.
//
//   auto scaler = std::make_shared<GradScaler>();
//   optimizer.UseGradScaler(scaler);
//   scaler->Backward(loss);  // as often as gradients are to be accumulated
//   ClipGradNorm(optimizer, 1.0); optimizer.Step(); scheduler->Step(); optimizer.ZeroGrad();
//
// An Accelerator whose mixed_precision is "fp16" does all this. If the loss lies on a device, so do
// the scale and the state that decides about it. Then scale(), step_was_skipped() and
// num_skipped_steps() wait for the device; nothing else does.
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"

namespace lathe {

struct ScalerState;
struct StateDict;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // after growth_interval taken steps in a row
  double backoff_factor = 0.5;     // after each skipped step
  int64_t growth_interval = 2000;  // steps
};

class GradScaler {
 public:
  // fairseq's limit: if gradients overflow float16 at a smaller scale, no scale helps.
  static constexpr float kSmallestScale = 1e-4f;

  // Throws unless growth_factor > 1, 0 < backoff_factor < 1, growth_interval > 0 and init_scale is
  // a positive float32.
  explicit GradScaler(GradScalerOptions options = {});

  // Returns the scale of the present gradients. It changes only with the first Backward after a
  // Step, so that all gradients of a step have the same scale.
  float scale() const;

  // Runs the backward pass of `factor` times the loss, scaled. Throws if an optimizer has already
  // divided its gradients (by clipping, or GradNorm) and has not made its step since.
  void Backward(const Tensor& loss, double factor = 1);
  // These do the same for a backward pass that the caller runs: first BeginPass, then
  // ScaleLossGradient of the loss's gradient from which the pass starts. A rank without a loss of
  // its own makes both calls, too. On a device ScaleLossGradient only queues work once PrepareFor
  // was called, so it may be recorded.
  void BeginPass();
  void ScaleLossGradient(Tensor gradient);
  void PrepareFor(Device device);

  // Returns true if the last step of an optimizer that uses this scaler was skipped.
  bool step_was_skipped() const;
  // Returns how many steps were skipped so far.
  int64_t num_skipped_steps() const;

  // Return the scale and what decides about its next change (core/checkpoint/state_dict.h), and go
  // on from there. May wait for the device.
  lathe::StateDict StateDict() const;
  void LoadStateDict(const lathe::StateDict& state);

  // Adapts the scale after a step. found_inf: true if a gradient was not finite. Backward calls
  // this.
  void Update(bool found_inf);

 private:
  friend class GradUnscaler;
  // Records a step on the host. found_inf: the step is skipped.
  void RecordStep(bool found_inf);
  // Moves the state to `device` unless it is there, and returns it.
  ScalerState* StateOn(Device device);
  // Records a step that was queued on a device, with an outcome that is not known yet.
  void RecordQueuedStep() { unscaled_ = false, unread_ = true; }
  // Moves the state to the host.
  void MoveToHost();
  void Read() const;

  GradScalerOptions options_;
  int64_t num_passes_ = 0;  // calls of BeginPass
  bool unscaled_ = false;   // gradients are divided, and their step is still to come
  // The state. If it lies on a device, this is what was last read from there.
  mutable float scale_;
  mutable int64_t growth_tracker_ = 0;  // taken steps in a row
  mutable bool stepped_ = false;        // a step was due since the last pass
  mutable bool step_was_skipped_ = false;
  mutable int64_t num_skipped_steps_ = 0;
  Tensor state_;  // [bytes] u8 on a device: ScalerState; its address stays
  bool on_device_ = false;
  mutable bool unread_ = false;  // the state may have changed on the device
};

}  // namespace lathe
