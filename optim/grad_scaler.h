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
// An Accelerator whose mixed_precision is "fp16" sees to it.
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"

namespace lathe {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // after growth_interval steps in a row that were taken
  double backoff_factor = 0.5;     // after each step that was left out
  int64_t growth_interval = 2000;  // steps
};

class GradScaler {
 public:
  // Throws for factors that don't grow or don't back off, and for a scale that is not positive.
  explicit GradScaler(GradScalerOptions options = {});

  // What the gradients at hand are multiplied by. It changes with the first Backward after a Step
  // only, so that all gradients of a step have the same.
  float scale() const { return scale_; }

  // The backward pass of `factor` times the loss, scaled. Throws where an optimizer has divided its
  // gradients already (by clipping, or GradNorm) and not yet made its step.
  void Backward(const Tensor& loss, double factor = 1);
  // The same for a backward pass that the caller makes: returns the gradient of the loss that it
  // starts from. Processes that have nothing to add to the others' gradients call it, too.
  double BeginPass(double factor);

  // Whether the last Step of an optimizer that uses this was left out, and how many have been.
  bool step_was_skipped() const { return step_was_skipped_; }
  int64_t num_skipped_steps() const { return num_skipped_steps_; }

  // The rule, after a step: `found_inf` if gradients were not finite. Backward calls it.
  void Update(bool found_inf);

 private:
  friend class Optimizer;
  void StepIsDue(bool found_inf);

  GradScalerOptions options_;
  float scale_;
  int64_t growth_tracker_ = 0;  // steps in a row that were taken
  int64_t num_passes_ = 0;      // Backward's calls
  bool unscaled_ = false;       // some gradients, with a step to come
  bool stepped_ = false;        // since the last Backward
  bool step_was_skipped_ = false;
  int64_t num_skipped_steps_ = 0;
};

}  // namespace lathe
