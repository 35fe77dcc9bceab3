#include "lathe/models/encoders/device_constant.h"

namespace lathe {

Tensor DeviceConstant::On(Device device) {
  const std::lock_guard lock(mutex_);
  for (const Tensor& tensor : tensors_) {
    if (tensor.device() == device) return tensor;
  }
  return tensors_.emplace_back(make_().To(device));
}

}  // namespace lathe
