// Optimizers' passes over an arena that lies on a device: everything is queued, nothing is read
// back.
#pragma once

#include <vector>

#include "lathe/core/device_kernels.h"
#include "lathe/nn/arena.h"

namespace lathe {

// Ranges on the device, as its kernels take them.
struct DeviceRanges {
  DeviceRanges(std::vector<DeviceRange> ranges, Device device);
  const DeviceRange* data() const;
  int64_t count = 0, chunks = 0;
  Tensor bytes;
};

// The factor that all gradients count times: [] float32 on the device, or undefined for 1. Where
// parameters have different ones, their gradients are multiplied first.
Tensor CommonGradScale(ParameterArena& arena);

// L2 norm of all gradients times their factors, [] float32 on the device.
Tensor DeviceGradNorm(ParameterArena& arena);
// The gradients' factor becomes min(1, max_norm / (norm + 1e-6)); returns the norm before.
// latch: see DeviceOptimizerKernels::guard; undefined: none.
Tensor DeviceClipGradNorm(ParameterArena& arena, double max_norm, const Tensor& losses = {},
                          const Tensor& latch = {});

}  // namespace lathe
