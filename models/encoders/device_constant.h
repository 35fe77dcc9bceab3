// DeviceConstant: a tensor of fixed numbers on each device that asks for it.
//
//   DeviceConstant table([] { return RotaryTable(512, RotaryFrequencies(64, 10000)); });
//   context.rotary.table = table.On(device);
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

class DeviceConstant {
 public:
  // `make` returns the numbers on the host, the same each time.
  explicit DeviceConstant(std::function<Tensor()> make) : make_(std::move(make)) {}

  // Returns the tensor on `device`. The first call for a device makes it there, later calls return
  // the same. Threads may call it at the same time.
  Tensor On(Device device);

 private:
  std::function<Tensor()> make_;
  std::mutex mutex_;
  std::vector<Tensor> tensors_;  // one for each device that asked
};

}  // namespace lathe
