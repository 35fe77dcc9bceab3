// An optimizer's passes over an arena on a device. All work is queued, and only ReadSteps reads
// anything back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/nn/arena.h"
#include "lathe/optim/graphs/update_graphs.h"

namespace lathe {

// Returns the factor by which all gradients must still be multiplied: [] float32 on the device, or
// undefined for 1. If the parameters' factors differ, it multiplies the gradients by them first.
Tensor CommonGradScale(ParameterArena& arena);

// Returns the L2 norm of all gradients times their factors, [] float32 on the device.
Tensor DeviceGradNorm(ParameterArena& arena);

// An optimizer's method, its constants and its moments on a device.
struct DeviceMethod {
  RateRule rule;
  AdamWConstants adamw = {};
  SgdConstants sgd = {};
  update_rules::Rule update = {};  // replaces adamw and sgd if it holds a rule
  // The moments, undefined where there are none. For SGD m is the momentum's buffer. A rule has
  // its moments in this order.
  Tensor m = {}, v = {}, last = {};
  int64_t means = 0;  // of Adafactor (UpdateScratchBytes)
};

// The rates of the coming step.
struct StepRates {
  static constexpr int64_t kMaxRates = 64;  // the maximum of values.num_rates
  RateValues values;
  std::vector<double> lrs;  // [groups, values.num_rates]
};

// Queues an optimizer's updates on a device. Unscale and Clip only collect work; Step and Queue
// queue all that was collected.
class DeviceUpdater {
 public:
  DeviceUpdater(Device device, int num_groups);

  // Divides the gradients by the scaler's scale. The next Step is skipped if one is not finite.
  void Unscale(ParameterArena& arena, ScalerState* scaler);
  // Sets the gradients' factor to min(1, max_norm / (norm + 1e-6)). Returns [2] float32: the norm
  // before, and the scaler's scale, or 1 without a scaler. losses, [n] float32, and latch, []
  // float32, may be undefined; see DeviceOptimizerKernels::clip.
  Tensor Clip(ParameterArena& arena, double max_norm, const Tensor& losses, const Tensor& latch,
              const ScalerState* scaler);
  // Updates `ranges` of the arena. counters: [n] int64, one for each parameter. scaler: null for
  // none. Returns true if only ReadSteps can tell whether the step was taken. This is so with a
  // scaler, and after Clip: the device may skip the step (see DeviceOptimizerKernels::clip).
  bool Step(ParameterArena& arena, const DeviceMethod& method, std::vector<DeviceRange> ranges,
            DType narrow_type, const Tensor& counters, const StepRates& rates, ScalerState* scaler);
  void Queue();

  // Returns the counts of those steps for which Step returned true. Waits for the device.
  DeviceStepCounts ReadSteps() const;

  Device device() const { return device_; }
  UpdateGraphs& graphs() { return graphs_; }

 private:
  // A step's values that the device reads.
  struct Values {
    ClipValues clip;
    RateValues rates;
  };
  DeviceStepCounts* Steps() const;

  Device device_;
  DeviceBackend& backend_;
  UpdateGraphs graphs_;
  DeviceUpdate waiting_;  // the work that was collected
  Values waiting_values_;
  std::vector<double> waiting_lrs_;
  Tensor waiting_results_, waiting_losses_;  // waiting_values_ points to them
  Tensor values_;                            // [bytes] u8: Values, then lrs
  Tensor norm_, factor_, scaled_factor_;     // [] f32
  Tensor scratch_;                           // [bytes] u8, for the norm
  Tensor steps_;                             // [bytes] u8: DeviceStepCounts
  std::vector<DeviceRange> ranges_;
  Tensor ranges_there_;  // [bytes] u8: ranges_ on the device
  Tensor rates_;         // [bytes] u8: DeviceRates for each range
  Tensor rule_scratch_;  // [bytes] u8, for rules that look at a parameter as a whole
};

}  // namespace lathe
