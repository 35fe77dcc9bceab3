// Loss scaling for float16, in which gradients below 6e-8 would be 0: the loss's gradient is
// multiplied by a scale, parameters' gradients are divided by it before anything is done with
// them, and a step whose gradients are not finite is left out and the scale lowered (Micikevicius
// et al. 2018; rule and defaults are those of PyTorch's GradScaler).
//
//   auto scaler = std::make_shared<GradScaler>();
//   optimizer.UseGradScaler(scaler);
//   scaler->Backward(loss);  // as often as gradients are to be accumulated
//   ClipGradNorm(optimizer, 1.0); optimizer.Step(); scheduler->Step(); optimizer.ZeroGrad();
//
// An Accelerator whose mixed_precision is "fp16" sees to it. Where the loss lies on a device, so do
// the scale and all that decides about it: scale(), step_was_skipped() and num_skipped_steps() wait
// for the device, nothing else does.
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"

namespace lathe {

struct ScalerState;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // after growth_interval steps in a row that were taken
  double backoff_factor = 0.5;     // after each step that was left out
  int64_t growth_interval = 2000;  // steps
};

class GradScaler {
 public:
  // fairseq's: where gradients overflow float16 at less than this, no scale helps.
  static constexpr float kSmallestScale = 1e-4f;

  // Throws for factors that don't grow or don't back off, and for a scale that is not positive.
  explicit GradScaler(GradScalerOptions options = {});

  // What the gradients at hand are multiplied by. It changes with the first Backward after a Step
  // only, so that all gradients of a step have the same.
  float scale() const;

  // The backward pass of `factor` times the loss, scaled. Throws where an optimizer has divided its
  // gradients already (by clipping, or GradNorm) and not yet made its step.
  void Backward(const Tensor& loss, double factor = 1);
  // The same for a backward pass that the caller makes: first BeginPass, then ScaleSeed of the
  // gradient of the loss that it starts from. Processes that have nothing to add to the others'
  // gradients make both calls, too. On a device ScaleSeed does nothing but queue work, once
  // PrepareFor was called: it may be recorded.
  void BeginPass();
  void ScaleSeed(Tensor seed);
  void PrepareFor(Device device);

  // Whether the last Step of an optimizer that uses this was left out, and how many have been.
  bool step_was_skipped() const;
  int64_t num_skipped_steps() const;

  // The rule, after a step: `found_inf` if gradients were not finite. Backward calls it.
  void Update(bool found_inf);

 private:
  friend class Optimizer;
  void StepIsDue(bool found_inf);
  // The state, which is there from now on.
  ScalerState* StateOn(Device device);
  // The same, when something is queued that makes a step.
  void StepIsQueued() { unscaled_ = false, unread_ = true; }
  // The state is that of the host from now on.
  void LeaveDevice();
  void Read() const;

  GradScalerOptions options_;
  int64_t num_passes_ = 0;  // BeginPass's calls
  bool unscaled_ = false;   // some gradients, with a step to come
  // The state, as it was read last where it lies on a device.
  mutable float scale_;
  mutable int64_t growth_tracker_ = 0;  // steps in a row that were taken
  mutable bool stepped_ = false;        // since the last pass
  mutable bool step_was_skipped_ = false;
  mutable int64_t num_skipped_steps_ = 0;
  Tensor state_;  // [bytes] u8 on a device: ScalerState. Its place stays.
  bool on_device_ = false;
  mutable bool unread_ = false;  // may have changed there
};

}  // namespace lathe
