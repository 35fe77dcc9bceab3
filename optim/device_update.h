// An optimizer's passes over an arena that lies on a device: everything is queued, nothing is read
// back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/nn/arena.h"
#include "lathe/optim/update_graphs.h"

namespace lathe {

// The factor that all gradients count times: [] float32 on the device, or undefined for 1. Where
// parameters have different ones, their gradients are multiplied first.
Tensor CommonGradScale(ParameterArena& arena);

// L2 norm of all gradients times their factors, [] float32 on the device.
Tensor DeviceGradNorm(ParameterArena& arena);

// What an optimizer is on a device.
struct DeviceMethod {
  RateRule rule;
  AdamWConstants adamw = {};
  SgdConstants sgd = {};
  Tensor m = {}, v = {};  // SGD: the momentum's buffer, or undefined; v is undefined
};

// The rates of the coming step.
struct StepRates {
  static constexpr int64_t kMost = 64;  // values.num_rates
  RateValues values;
  std::vector<double> lrs;  // (groups, values.num_rates)
};

// What is to be done is put together call by call and queued by Step or Queue.
class DeviceUpdater {
 public:
  DeviceUpdater(Device device, int num_groups);

  // The gradients are divided by the scale of this scaler; a Step is skipped if one is not finite.
  void Unscale(ParameterArena& arena, ScalerState* scaler);
  // The gradients' factor becomes min(1, max_norm / (norm + 1e-6)). Returns [2] float32: the norm
  // before, and the scale of the scaler, if any, or 1. losses [n] float32 and latch [] float32, or
  // undefined: see DeviceOptimizerKernels::clip.
  Tensor Clip(ParameterArena& arena, double max_norm, const Tensor& losses, const Tensor& latch,
              const ScalerState* scaler);
  // ranges: what is updated. counters: [n] int64, one for each parameter. scaler: null without.
  // Returns whether ReadSteps tells if the step was taken: one with a scaler, and one that may be
  // held back by clipping.
  bool Step(ParameterArena& arena, const DeviceMethod& method, std::vector<DeviceRange> ranges,
            DType narrow_type, const Tensor& counters, const StepRates& rates, ScalerState* scaler);
  void Queue();

  // What has become of the steps that Step says it of. Waits for them.
  ScaledSteps ReadSteps() const;

  Device device() const { return device_; }
  UpdateGraphs& graphs() { return graphs_; }

 private:
  // What the device reads of a step.
  struct Values {
    ClipValues clip;
    RateValues rates;
  };
  ScaledSteps* Steps() const;

  Device device_;
  DeviceBackend& backend_;
  UpdateGraphs graphs_;
  DeviceUpdate waiting_;  // to be queued
  Values waiting_values_;
  std::vector<double> waiting_lrs_;
  Tensor waiting_results_, waiting_losses_;  // where waiting_values_ points
  Tensor values_;                            // [bytes] u8: Values, then lrs
  Tensor norm_, factor_, scaled_factor_;     // [] f32
  Tensor scratch_;                           // [bytes] u8, of the norm
  Tensor steps_;                             // [bytes] u8: ScaledSteps
  std::vector<DeviceRange> ranges_;
  Tensor ranges_there_;  // [bytes] u8, the same on the device
  Tensor rates_;         // [bytes] u8
};

}  // namespace lathe
