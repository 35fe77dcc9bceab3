#include "lathe/optim/device_update.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lathe {

DeviceRanges::DeviceRanges(std::vector<DeviceRange> ranges, Device device)
    : count(std::ssize(ranges)), chunks(NumberChunks(ranges)) {
  const Tensor on_host =
      Tensor::Empty({count * static_cast<int64_t>(sizeof(DeviceRange))}, DType::kU8);
  if (count > 0) {
    std::memcpy(on_host.raw_data(), ranges.data(), static_cast<size_t>(on_host.bytes()));
  }
  bytes = on_host.To(device);
}

const DeviceRange* DeviceRanges::data() const {
  return static_cast<const DeviceRange*>(bytes.raw_data());
}

Tensor CommonGradScale(ParameterArena& arena) {
  const auto& entries = arena.entries();
  const TensorImpl& first = *entries[0].parameter.tensor.impl();
  const bool same =
      std::all_of(entries.begin(), entries.end(), [&](const ParameterArena::Entry& entry) {
        const TensorImpl& p = *entry.parameter.tensor.impl();
        return p.grad_scale == 1 && p.device_grad_scale == first.device_grad_scale;
      });
  if (same) return Tensor(first.device_grad_scale);
  for (const ParameterArena::Entry& entry : entries) ApplyGradScale(*entry.parameter.tensor.impl());
  return {};
}

Tensor DeviceGradNorm(ParameterArena& arena) {
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  if (CommonGradScale(arena).defined()) arena.GradsToRead(/*scaled=*/true);
  const auto& kernels = DeviceKernels<DeviceOptimizerKernels>();
  const int64_t bytes = kernels.norm_scratch_bytes(grads.numel());
  const Tensor scratch = Tensor::Empty({bytes}, DType::kU8, grads.device());
  const Tensor norm = Tensor::Empty({}, DType::kF32, grads.device());
  kernels.norm(norm.data<float>(), grads.data<float>(), grads.numel(), scratch.raw_data(), bytes);
  return norm;
}

Tensor DeviceClipGradNorm(ParameterArena& arena, double max_norm, const Tensor& losses,
                          const Tensor& latch) {
  const Tensor norm = DeviceGradNorm(arena);
  const Tensor factor = Tensor::Empty({}, DType::kF32, norm.device());
  DeviceKernels<DeviceOptimizerKernels>().clip_factor(factor.data<float>(), norm.data<float>(),
                                                      static_cast<float>(max_norm));
  if (latch.defined()) {
    DeviceKernels<DeviceOptimizerKernels>().guard(
        factor.data<float>(), losses.defined() ? losses.data<float>() : nullptr,
        losses.defined() ? losses.numel() : 0, latch.data<float>());
  }
  for (const ParameterArena::Entry& entry : arena.entries()) {
    entry.parameter.tensor.impl()->device_grad_scale = factor.impl();
  }
  return norm;
}

}  // namespace lathe
