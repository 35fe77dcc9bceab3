// The optimizers AdamW and SGD, and the class of all optimizers (others:
// optim/optimizers/optimizers.h). An optimizer puts its parameters into one arena (nn/arena.h) and
// updates it in flat passes.
//
//   AdamW optimizer(model.Parameters(), {.lr = 3e-5, .weight_decay = 0.01});
//   Backward(loss); ClipGradNorm(optimizer, 1.0); optimizer.Step(); optimizer.ZeroGrad();
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/nn/arena.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/grad_unscaler.h"
#include "lathe/optim/sharded_update.h"
#include "lathe/optim/step_ledger.h"

namespace lathe {

namespace cpu {
struct AdamWRange;
}
class DeviceUpdater;
struct DeviceMethod;
struct GraphStatistics;
struct StateDict;

// A set of parameters with their own learning rate and weight decay.
struct ParameterGroup {
  std::vector<Parameter> parameters;
  double lr = -1;            // negative: that of the optimizer's options
  double weight_decay = -1;  // negative: that of the optimizer's options
};

// Returns the two groups of Transformers' Trainer: parameters that decay, with `weight_decay`, and
// the others (biases and norms), with 0.
std::vector<ParameterGroup> DecayGroups(const std::vector<Parameter>& parameters,
                                        double weight_decay);

class Optimizer {
 public:
  virtual ~Optimizer();

  // Updates the parameters from the gradients in the arena, at each group's current lr. A parameter
  // whose gradient was never computed counts as having gradient 0. Parameters that require no
  // gradient (frozen ones) stay as they are. If the ranks divide the update among them, this is a
  // collective.
  void Step();
  void ZeroGrad();
  // From now on Step and ZeroGrad do nothing while *may_step is false, and schedules of this
  // optimizer make no step. An Accelerator sets *may_step to false during gradient accumulation.
  void StepOnlyIf(std::shared_ptr<const bool> may_step) { may_step_ = std::move(may_step); }
  bool may_step() const { return may_step_ == nullptr || *may_step_; }
  // From now on gradients are those of losses that `scaler` has multiplied. They are divided by its
  // scale before Step, GradNorm or clipping use them. Step does nothing if one of them is not
  // finite. Such a step doesn't count, and schedules of this optimizer skip theirs. On a device the
  // host doesn't wait to learn which steps were skipped; functions marked "may wait" wait when
  // called.
  void UseGradScaler(std::shared_ptr<GradScaler> scaler);
  const std::shared_ptr<GradScaler>& grad_scaler() const { return unscaler_.scaler(); }
  // Divides the gradients by the scaler's scale, at most once per step. Does nothing without a
  // scaler.
  void UnscaleGrads();
  // Returns true if the last Step did nothing because a gradient was not finite. May wait.
  bool step_was_skipped() const { return ledger_.step_was_skipped(); }
  // From now on each Step updates this rank's stripes of the parameters and gets those of the
  // other ranks from them. An Accelerator calls this for AcceleratorOptions::shard_optimizer.
  // Throws if this optimizer can't do that (can_shard) and `shards` is not null.
  void ShardUpdates(std::shared_ptr<const CurrentShards> shards);
  // Returns false if an update of one element depends on a whole parameter.
  virtual bool can_shard() const { return true; }
  // The division in force; null unless the update is sharded.
  const OptimizerShards* shards() const { return sharded_update_.current(); }
  // If `on`, a device repeats recurring updates as CUDA graphs (optim/graphs/update_graphs.h). Off
  // at first. An Accelerator sets it from AcceleratorOptions::step_graphs.
  void UseGraphs(bool on);
  GraphStatistics graph_statistics() const;
  // Returns true if the last update was sharded and ended with an error, or if values of other
  // ranks have not all come yet. Then some parameters, or parts of them, may have changed while
  // others have not.
  bool step_is_half_done() const { return sharded_update_.is_half_done(); }
  // Returns true if that is so because values of other ranks have not come, after Step has
  // returned: then some parameters are still those of the step before.
  bool lacks_values_of_others() const { return sharded_update_.lacks_values(); }

  int num_groups() const { return ledger_.num_groups(); }
  // Functions of a group throw if there is no such group; SetLr throws for a rate
  // that is negative, infinite or NaN.
  double lr(int group = 0) const { return ledger_.rate(group); }    // may wait
  void SetLr(int group, double lr) { ledger_.SetRate(group, lr); }  // may wait
  double initial_lr(int group = 0) const { return ledger_.initial_rate(group); }
  // Returns the learning rate of the last Step. May wait.
  double used_lr(int group = 0) const { return ledger_.used_rate(group); }
  // Makes a step of `schedule` and sets the rates, unless the last Step was skipped. Does nothing
  // while StepOnlyIf holds Step back.
  void Advance(const std::shared_ptr<RateSchedule>& schedule);
  // Returns the number of steps that were taken. May wait.
  int64_t step_count() const { return ledger_.step_count(); }
  // Returns how often this object's Step has used gradients. Skipped steps count, too; steps from a
  // loaded state don't. Never waits.
  int64_t num_step_calls() const { return num_step_calls_; }
  // Returns the settings that decide on the updates besides the gradients: groups, rates, decay,
  // moments. Accelerator::Prepare throws unless they are the same on all ranks (preflight).
  virtual NamedSettings Settings() const;
  // Returns the rates, the numbers of steps and the moments (core/checkpoint/state_dict.h). The
  // tensors are views that change with the next Step. If the update is sharded, they are this
  // rank's elements; the states of all ranks together hold all. May wait.
  lathe::StateDict StateDict();
  // Goes on from such a state: the next Step gives the same bits as it would have there. The
  // moments of each parameter must be whole; merge the tensors of several ranks' states before.
  // Throws, and names the parameter, if the state has other parameters or shapes.
  void LoadStateDict(const lathe::StateDict& state);
  ParameterArena& arena() const { return *arena_; }
  const std::shared_ptr<ParameterArena>& shared_arena() const { return arena_; }

 protected:
  // Makes the update of a Step: updates `own` of each range that is trained, calls GatherUpdates
  // and then updates whatever else depends on the values.
  virtual void UpdateParameters() = 0;
  // Returns the optimizer's buffers of moments. Each is as large as the arena once it is defined.
  virtual std::vector<Tensor*> StateBuffers() = 0;
  // Returns the names of these buffers in a StateDict, those of PyTorch.
  virtual std::vector<std::string> StateNames() const = 0;
  // The number that fills these buffers at first.
  virtual double InitialState() const { return 0; }
  // A tensor of the state that belongs to one parameter and has a shape of its own, with its name
  // in a StateDict. It is 0 at first.
  struct OwnState {
    std::string name;
    Tensor values;
  };
  // Returns those of range i; none before AllocateState.
  virtual std::vector<OwnState> OwnStateOf(size_t /*range*/) { return {}; }
  // Defines those buffers that this optimizer needs.
  virtual void AllocateState() = 0;
  // Called after the buffers were filled.
  virtual void OnStateLoaded() {}
  // Called after `own` of this range has changed. At that time the buffers hold every rank's
  // moments.
  virtual void OnOwnRangesChanged(size_t /*range*/) {}
  // Gets the other ranks' stripes of the values. Only elements in `changed` (see OptimizerShards)
  // can have been updated. Returns false if some of them may still be under way.
  bool GatherUpdates(const std::vector<ElementRange>& changed) {
    return sharded_update_.Gather(arena_->values(), changed);
  }
  // Returns the range of all elements of the arena.
  ElementRange AllElements() const { return {0, arena_->values().numel()}; }
  // Does what UpdateParameters does, for values on a device.
  void UpdateOnDevice(const DeviceMethod& method);
  Optimizer(std::vector<ParameterGroup> groups, double default_lr, double default_weight_decay);

  // A parameter's range of the arena, with the gap after it.
  struct Range {
    int64_t begin, end;  // elements
    int group;
    Tensor parameter;
    std::vector<ElementRange> own;  // what this rank updates: all, unless the update is sharded
  };
  std::shared_ptr<ParameterArena> arena_;
  std::vector<Range> ranges_;
  std::vector<double> weight_decay_;  // of each group
  // [ranges] i64 on the values' device: the number of updates of each range. Steps while it was
  // frozen don't count.
  Tensor steps_;
  ShardedUpdate sharded_update_;  // `own` and the buffers correspond to its adopted shards

 private:
  friend class StepGuard;
  friend Tensor ClipGradNorm(Optimizer& optimizer, double max_norm);
  void AdoptShards();
  // Fills range i of a buffer from the state's tensors of that name.
  void LoadBuffer(const lathe::StateDict& state, const std::string& name, size_t i, Tensor& buffer);
  // Fills the tensors of OwnStateOf(i) from the state; with 0 if the range had no update.
  void LoadOwnState(const lathe::StateDict& state, size_t i, int64_t count);
  void CheckSingleUpdater() const;
  void MakeStep();
  // Returns the updater for the device on which the values lie.
  DeviceUpdater& Updater();
  // Does what UnscaleGrads does, but on a device the division waits until the updater queues its
  // work.
  void Unscale();
  // Returns the scaler's state on the device, or null.
  ScalerState* Scaler();
  std::unique_ptr<DeviceUpdater> updater_;
  bool use_graphs_ = false;
  std::shared_ptr<const bool> may_step_;
  GradUnscaler unscaler_;
  mutable StepLedger ledger_;  // catches up with the device when it is read
  int64_t num_step_calls_ = 0;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // PyTorch's default, decoupled
};

// AdamW (Loshchilov & Hutter 2019), with PyTorch's placement of eps:
//   p -= lr * wd * p;  m, v: moving averages of g and g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
class AdamW : public Optimizer {
 public:
  AdamW(std::vector<Parameter> parameters,
        AdamWOptions options);  // one group, so all parameters decay, as in PyTorch
  AdamW(std::vector<ParameterGroup> groups, AdamWOptions options);
  NamedSettings Settings() const override;

 private:
  void UpdateParameters() override;
  std::vector<Tensor*> StateBuffers() override { return {&exp_avg_, &exp_avg_sq_}; }
  std::vector<std::string> StateNames() const override { return {"exp_avg", "exp_avg_sq"}; }
  void AllocateState() override;
  void OnStateLoaded() override;
  void FindActive(size_t i);
  void OnOwnRangesChanged(size_t range) override;
  void UpdateDeviceValues();  // for values on a device
  void AddUpdates(size_t i, const float* grads, BFloat16* narrow,
                  std::vector<cpu::AdamWRange>& updates, std::vector<ElementRange>& changed);
  void AddChanged(size_t i, bool marked, std::vector<ElementRange>& changed);
  void NarrowValuesOfOthers(const Range& range);
  AdamWOptions options_;
  Tensor exp_avg_, exp_avg_sq_;  // [n] f32, allocated at the first step
  // For each range, the flags of its blocks (AdamWRange::active in core/cpu/optimizer.h): the
  // blocks of each range in `own`, one range after the other.
  std::vector<std::vector<uint8_t>> active_;
  // If updates are sharded, for each range of a table: the rows that ever had a gradient on some
  // rank.
  std::vector<std::vector<bool>> rows_;
  // For each range: true if it is unknown which rows had one, so every row may have.
  std::vector<bool> any_row_;
};

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;  // added to the gradient, as in PyTorch
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
  std::vector<std::string> StateNames() const override { return {"momentum_buffer"}; }
  void AllocateState() override;
  SGDOptions options_;
  Tensor momentum_;
};

// Returns the L2 norm over all gradients of the arena as a [] f32 tensor. Nothing is read back to
// the host. If each rank has only its stripes of the gradients, this and ClipGradNorm are
// collectives.
Tensor GradNorm(Optimizer& optimizer);

// Scales the gradients by min(1, max_norm / (norm + 1e-6)) (PyTorch's clip_grad_norm_). Returns the
// norm before, on the parameters' device. A norm that is not finite leaves NaN in the gradients, as
// PyTorch does (error_if_nonfinite=False). On a device, Step then leaves parameters and moments as
// they are, unless some of the gradients were materialized or set in between.
Tensor ClipGradNorm(Optimizer& optimizer, double max_norm);

// Stops all updates from the first bad step on: the first one whose gradient norm or loss is not
// finite. It is for loops that read losses and norms from a device only now and then. However many
// steps later they look, they find the parameters as they were before the bad step. With a
// GradScaler a gradient that overflows is no bad step unless the scale is below
// GradScaler::kSmallestScale. Only the step with that gradient is skipped.
//
//   StepGuard guard;
//   Tensor norm = guard.Clip(optimizer, 1.0, accelerator.LastLosses());  // instead of ClipGradNorm
//   optimizer.Step();
class StepGuard {
 public:
  // Does ClipGradNorm, or only GradNorm for max_norm 0, and records a bad step. The optimizer's
  // parameters must lie on a device. losses: [n] float32 on that device, or undefined.
  Tensor Clip(Optimizer& optimizer, double max_norm, const Tensor& losses);
  // Does Clip and the optimizer's Step, queued as one update. During gradient accumulation it does
  // nothing and returns an undefined tensor.
  Tensor ClipAndStep(Optimizer& optimizer, double max_norm, const Tensor& losses);
  // Returns [] f32 on the device: the loss's scale at the last Clip; 1 without a GradScaler.
  const Tensor& last_scale() const { return scale_; }

 private:
  Tensor PrepareClip(Optimizer& optimizer, double max_norm, const Tensor& losses);
  Tensor scale_;
  Tensor latch_;  // [] f32: NaN after the first bad step
};

void ClipGradValue(Optimizer& optimizer, double max_value);

}  // namespace lathe
