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

class DeviceUpdater {
 public:
  explicit DeviceUpdater(Device device);

  // The gradients' factor becomes min(1, max_norm / (norm + 1e-6)); returns the norm before, []
  // float32. losses [n] float32 and latch [] float32, or undefined: see
  // DeviceOptimizerKernels::clip. `with_step`: the work is queued with that of the next Step.
  Tensor Clip(ParameterArena& arena, double max_norm, const Tensor& losses, const Tensor& latch,
              bool with_step);
  // Queues what has waited for a Step that doesn't come.
  void QueueClip();

  // ranges: what is updated. counters: [n] int64, one for each parameter. lrs: the groups'.
  void Step(ParameterArena& arena, const DeviceMethod& method, std::vector<DeviceRange> ranges,
            DType narrow_type, const Tensor& counters, std::span<const double> lrs);

  Device device() const { return device_; }
  UpdateGraphs& graphs() { return graphs_; }

 private:
  // Gives the device this step's values of what is to be done.
  void Upload(bool clip, std::span<const double> lrs);

  Device device_;
  DeviceBackend& backend_;
  UpdateGraphs graphs_;
  DeviceUpdate waiting_;                  // for the next Step
  ClipValues clip_values_;                // of it
  Tensor waiting_norm_, waiting_losses_;  // where they point
  Tensor values_;                         // [bytes] u8: ClipValues, then lrs
  Tensor norm_, factor_;                  // [] f32
  Tensor scratch_;                        // [bytes] u8, of the norm
  std::vector<DeviceRange> ranges_;
  Tensor ranges_there_;  // [bytes] u8, the same on the device
  Tensor rates_;         // [bytes] u8
};

}  // namespace lathe
