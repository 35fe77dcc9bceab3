// Optimizers. They put their parameters into one arena (nn/arena.h) and update it in flat passes.
//
//   AdamW optimizer(model.Parameters(), {.lr = 3e-5, .weight_decay = 0.01});
//   Backward(loss); ClipGradNorm(optimizer, 1.0); optimizer.Step(); optimizer.ZeroGrad();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/nn/arena.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/update_shares.h"

namespace lathe {

class DeviceUpdater;
struct DeviceMethod;
struct UpdateGraphStatistics;
struct ScaledSteps;

// Rates that follow from the number of the schedule's step.
struct RateSchedule {
  std::function<double(int group, int64_t step)> rate;
  int64_t step = 0;
};

// A set of parameters with a rate and a decay of their own.
struct ParameterGroup {
  std::vector<Parameter> parameters;
  double lr = -1;            // negative: the optimizer's
  double weight_decay = -1;  // negative: the optimizer's
};

// Trainer's two groups: {decay: weight_decay; biases and norms: 0}.
std::vector<ParameterGroup> DecayGroups(const std::vector<Parameter>& parameters,
                                        double weight_decay);

class Optimizer {
 public:
  virtual ~Optimizer();

  // One update from the gradients in the arena, at each group's current lr. Parameters whose
  // gradient was never computed count as having gradient 0; those that require none (frozen ones)
  // stay as they are. Where the update is shared out, a collective.
  void Step();
  void ZeroGrad();
  // From now on Step and ZeroGrad do nothing while *may_step is false: an Accelerator says so while
  // gradients still accumulate. Schedules of this optimizer wait with it.
  void StepOnlyIf(std::shared_ptr<const bool> may_step) { may_step_ = std::move(may_step); }
  bool may_step() const { return may_step_ == nullptr || *may_step_; }
  // From now on gradients are those of losses that `scaler` has multiplied. They are divided before
  // Step, GradNorm or clipping use them, and a Step does nothing if one of them is not finite: it
  // doesn't count, and schedules of this optimizer wait. On a device nobody waits to find out which
  // steps did something: the functions marked with (*) do when they are called.
  void UseGradScaler(std::shared_ptr<GradScaler> scaler);
  const std::shared_ptr<GradScaler>& grad_scaler() const { return scaler_; }
  // Divides the gradients, once a step. Where there is no scaler, nothing.
  void UnscaleGrads();
  // Whether the last Step did nothing for that reason. (*)
  bool step_was_skipped() const;
  // From now on each Step updates this process's part of the parameters and gets the rest from the
  // others: an Accelerator says so (AcceleratorOptions::shard_optimizer).
  void ShareUpdates(std::shared_ptr<const PresentShares> shares);
  // Null unless the update is shared out.
  const UpdateShares* shares() const {
    return present_shares_ == nullptr ? nullptr : present_shares_->now.get();
  }
  // On a GPU: whether updates that come again are repeated as CUDA graphs (optim/update_graphs.h).
  // Off at first; an Accelerator says so (AcceleratorOptions::step_graphs).
  void UseGraphs(bool on);
  UpdateGraphStatistics graph_statistics() const;
  // Whether a Step ended with an error when some parameters had changed and others, or parts of
  // them, had not.
  bool step_is_half_done() const { return step_is_half_done_; }

  int num_groups() const { return static_cast<int>(lr_.size()); }
  double lr(int group = 0) const;    // (*)
  void SetLr(int group, double lr);  // (*)
  double initial_lr(int group = 0) const { return initial_lr_[group]; }
  double used_lr(int group = 0) const;  // of the last Step (*)
  // If the last Step did something, `schedule` makes a step and sets the rates. While Step waits,
  // nothing.
  void Advance(const std::shared_ptr<RateSchedule>& schedule);
  int64_t step_count() const;  // (*)
  // What decides on its updates besides the gradients: groups, rates, decay, moments. Prepare
  // demands that it is the same in all processes of a job.
  virtual NamedSettings Settings() const;
  ParameterArena& arena() const { return *arena_; }
  const std::shared_ptr<ParameterArena>& shared_arena() const { return arena_; }

 protected:
  // What Step does: updates `own` of each range that is trained, calls GatherUpdates, then whatever
  // else depends on the values.
  virtual void UpdateParameters() = 0;
  // The buffers it keeps, each as large as the arena once it is defined.
  virtual std::vector<Tensor*> StateBuffers() = 0;
  // After `own` of this range has changed; the buffers are whole then.
  virtual void OnNewOwn(size_t /*range*/) {}
  // The other processes' part of the values, of which nothing else than `changed` (UpdateShares)
  // can have been updated.
  void GatherUpdates(const std::vector<ElementRange>& changed);
  // All values.
  ElementRange Everything() const { return {0, arena_->values().numel()}; }
  // UpdateParameters where the values lie on a device.
  void UpdateOnDevice(const DeviceMethod& method);
  Optimizer(std::vector<ParameterGroup> groups, double default_lr, double default_weight_decay);

  // A parameter's stretch of the arena, with the gap after it.
  struct Range {
    int64_t begin, end;  // elements
    int group;
    Tensor parameter;
    std::vector<ElementRange> own;  // what this process updates: all of it unless that is shared
  };
  std::shared_ptr<ParameterArena> arena_;
  std::vector<Range> ranges_;
  mutable std::vector<double> lr_;  // after Settle
  std::vector<double> initial_lr_, weight_decay_;
  Tensor steps_;  // [ranges] i64, where the values lie: each one's updates, fewer if it was frozen
  std::shared_ptr<const UpdateShares> shares_;  // that `own` and the buffers follow

 private:
  friend class StepGuard;
  friend Tensor ClipGradNorm(Optimizer& optimizer, double max_norm);
  void AdoptShares();
  void CheckOneUpdates() const;
  void MakeStep();
  // Of the device where the values lie.
  DeviceUpdater& Updater();
  // Where the values lie on a device: what is to be done waits for the updater to queue it.
  void Unscale();
  // The scaler's, or null.
  ScalerState* Scaler();
  // Finds out what has become of steps with a scaler on a device.
  void Settle() const;
  // How many steps were taken.
  void CountSteps() const;
  // Sets the rates to those of the schedule's step `step`.
  void Follow(RateSchedule& schedule, int64_t step) const;
  std::unique_ptr<DeviceUpdater> updater_;
  bool use_graphs_ = false;
  std::shared_ptr<const PresentShares> present_shares_;
  bool step_is_half_done_ = false;
  std::shared_ptr<const bool> may_step_;
  std::shared_ptr<GradScaler> scaler_;
  Tensor found_inf_;           // [] f32, beside the gradients: 1 if one is not finite
  int64_t unscaled_pass_ = 0;  // of the scaler, whose gradients are divided

  // After Settle:
  mutable std::vector<double> used_lr_;
  mutable int64_t step_count_ = 0;
  mutable bool step_was_skipped_ = false;
  // Since then:
  mutable bool unsettled_ = false;                  // a step with a scaler was queued
  mutable bool uncounted_ = false;                  // one that may be held back was
  mutable std::shared_ptr<RateSchedule> schedule_;  // that makes steps if the optimizer does
  mutable int64_t queued_advances_ = 0;             // its steps that the device knows of
  mutable int64_t next_advances_ = 0;               // and those since
  mutable std::unique_ptr<ScaledSteps> settled_;    // the device's counts then; null: zeros
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // PyTorch's default, decoupled
};

// Loshchilov & Hutter 2019, with PyTorch's placement of eps:
//   p -= lr * wd * p; m, v moving averages; p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t))
//   + eps).
class AdamW : public Optimizer {
 public:
  AdamW(std::vector<Parameter> parameters,
        AdamWOptions options);  // one group, decay on all, as PyTorch
  AdamW(std::vector<ParameterGroup> groups, AdamWOptions options);
  NamedSettings Settings() const override;

 private:
  void UpdateParameters() override;
  std::vector<Tensor*> StateBuffers() override { return {&exp_avg_, &exp_avg_sq_}; }
  void OnNewOwn(size_t range) override;
  void AddChanged(size_t i, bool marked, std::vector<ElementRange>& changed);
  AdamWOptions options_;
  Tensor exp_avg_, exp_avg_sq_;  // [n] f32, allocated at the first step
  // For each range, those of its `own` one after the other; core/cpu/optimizer.h.
  std::vector<std::vector<uint8_t>> active_;
  // Where updates are shared out, for each range: the table's rows that ever had a gradient, in
  // whatever process; whether any may have had one.
  std::vector<std::vector<bool>> rows_;
  std::vector<bool> any_row_;
};

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;  // PyTorch's: added to the gradient
  double dampening = 0;
  bool nesterov = false;
};

class SGD : public Optimizer {
 public:
  SGD(std::vector<Parameter> parameters, SGDOptions options);
  SGD(std::vector<ParameterGroup> groups, SGDOptions options);
  NamedSettings Settings() const override;

 private:
  void UpdateParameters() override;
  std::vector<Tensor*> StateBuffers() override { return {&momentum_}; }
  SGDOptions options_;
  Tensor momentum_;
};

// L2 norm over all gradients of the arena as a [] f32 tensor; nothing is read back to the host.
// Where each process has only its part of the gradients, this and ClipGradNorm are collectives.
Tensor GradNorm(Optimizer& optimizer);

// Scales the gradients by min(1, max_norm / (norm + 1e-6)) (PyTorch's clip_grad_norm_) and returns
// the norm before, on the parameters' device. A norm that is not finite leaves NaN in the
// gradients, as PyTorch does (error_if_nonfinite=False); on a device, Step then leaves parameters
// and moments as they are, unless somebody has read or set some of the gradients in between.
Tensor ClipGradNorm(Optimizer& optimizer, double max_norm);

// Holds an optimizer back from a bad step on, for loops that look at losses and norms on a device
// only now and then: they find the parameters as they were before the first step whose gradient or
// loss was not finite, however many have come since. With a GradScaler, gradients that overflow are
// no harm unless its scale is below GradScaler::kSmallestScale: their step alone is skipped.
//
//   StepGuard guard;
//   Tensor norm = guard.Clip(optimizer, 1.0, accelerator.LastLosses());  // instead of ClipGradNorm
//   optimizer.Step();
class StepGuard {
 public:
  // ClipGradNorm, or GradNorm for max_norm 0, of an optimizer whose parameters lie on a device.
  // losses: [n] float32 there, or undefined.
  Tensor Clip(Optimizer& optimizer, double max_norm, const Tensor& losses);
  // The same and the optimizer's Step, which are queued as one. While gradients accumulate it does
  // nothing, and the result is undefined.
  Tensor ClipAndStep(Optimizer& optimizer, double max_norm, const Tensor& losses);
  // [] f32 on the device: what the gradients' loss was scaled by; 1 without a GradScaler.
  const Tensor& last_scale() const { return scale_; }

 private:
  Tensor PrepareClip(Optimizer& optimizer, double max_norm, const Tensor& losses);
  Tensor scale_;
  Tensor latch_;  // [] f32: NaN after the first bad step
};

void ClipGradValue(Optimizer& optimizer, double max_value);

}  // namespace lathe
