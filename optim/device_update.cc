#include "lathe/optim/device_update.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lathe {
namespace {

// At least so many bytes.
void Reserve(Tensor* bytes, int64_t size, Device device) {
  if (bytes->defined() && bytes->numel() >= size) return;
  *bytes = Tensor::Empty({size}, DType::kU8, device);
}

template <typename T>
T* Place(const Tensor& bytes, size_t at = 0) {
  return reinterpret_cast<T*>(static_cast<char*>(bytes.raw_data()) + at);
}

float* DataOrNull(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<float>() : nullptr;
}

// Of the values of a step.
constexpr size_t kRatesAt = sizeof(ClipValues);
static_assert(kRatesAt % alignof(double) == 0);

}  // namespace

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

DeviceUpdater::DeviceUpdater(Device device)
    : device_(device),
      backend_(BackendOf(device)),
      graphs_(backend_),
      norm_(Tensor::Empty({}, DType::kF32, device)),
      factor_(Tensor::Empty({}, DType::kF32, device)) {}

Tensor DeviceUpdater::Clip(ParameterArena& arena, double max_norm, const Tensor& losses,
                           const Tensor& latch, bool with_step) {
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  if (CommonGradScale(arena).defined()) arena.GradsToRead(/*scaled=*/true);
  const int64_t scratch_bytes =
      DeviceKernels<DeviceOptimizerKernels>().norm_scratch_bytes(grads.numel());
  Reserve(&scratch_, scratch_bytes, device_);
  Reserve(&values_, kRatesAt, device_);
  waiting_norm_ = Tensor::Empty({}, DType::kF32, device_);
  waiting_losses_ = losses;
  clip_values_ = {.max_norm = static_cast<float>(max_norm),
                  .norm = waiting_norm_.data<float>(),
                  .losses = DataOrNull(losses),
                  .num_losses = losses.defined() ? losses.numel() : 0};
  waiting_.clips = true;
  waiting_.clip = {.grads = grads.data<float>(),
                   .n = grads.numel(),
                   .scratch = scratch_.raw_data(),
                   .scratch_bytes = scratch_bytes,
                   .norm = norm_.data<float>(),
                   .factor = factor_.data<float>(),
                   .values = nullptr,
                   .latch = DataOrNull(latch)};
  for (const ParameterArena::Entry& entry : arena.entries()) {
    entry.parameter.tensor.impl()->device_grad_scale = factor_.impl();
  }
  const Tensor norm = waiting_norm_;
  if (!with_step) QueueClip();
  return norm;
}

void DeviceUpdater::QueueClip() {
  if (!waiting_.clips) return;
  Upload(/*clip=*/true, {});
  graphs_.Run(std::exchange(waiting_, {}));
  waiting_norm_ = waiting_losses_ = {};
}

void DeviceUpdater::Upload(bool clip, std::span<const double> lrs) {
  std::vector<char> values(kRatesAt + lrs.size_bytes());
  std::memcpy(values.data(), &clip_values_, sizeof(clip_values_));
  if (!lrs.empty()) std::memcpy(values.data() + kRatesAt, lrs.data(), lrs.size_bytes());
  Reserve(&values_, static_cast<int64_t>(values.size()), device_);
  const size_t from = clip ? 0 : kRatesAt;
  backend_.CopyToDevice(Place<char>(values_, from), values.data() + from,
                        static_cast<int64_t>(values.size() - from));
  waiting_.clip.values = clip ? Place<ClipValues>(values_) : nullptr;
}

void DeviceUpdater::Step(ParameterArena& arena, const DeviceMethod& method,
                         std::vector<DeviceRange> ranges, DType narrow_type, const Tensor& counters,
                         std::span<const double> lrs) {
  const Tensor& values = arena.values();
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  const Tensor factor = CommonGradScale(arena);
  const int64_t chunks = NumberChunks(ranges);
  if (ranges != ranges_) {
    const auto count = static_cast<int64_t>(ranges.size());
    Reserve(&ranges_there_, count * static_cast<int64_t>(sizeof(DeviceRange)), device_);
    Reserve(&rates_, count * static_cast<int64_t>(sizeof(DeviceRates)), device_);
    if (count > 0) {
      backend_.CopyToDevice(ranges_there_.raw_data(), ranges.data(),
                            count * static_cast<int64_t>(sizeof(DeviceRange)));
    }
    ranges_ = std::move(ranges);
  }
  if (ranges_.empty()) return QueueClip();
  Upload(waiting_.clips, lrs);
  waiting_.steps = true;
  waiting_.step = {.rule = method.rule,
                   .adamw = method.adamw,
                   .sgd = method.sgd,
                   .p = values.data<float>(),
                   .m = DataOrNull(method.m),
                   .v = DataOrNull(method.v),
                   .grads = grads.data<float>(),
                   .factor = DataOrNull(factor),
                   .ranges = Place<const DeviceRange>(ranges_there_),
                   .rates = Place<DeviceRates>(rates_),
                   .counters = counters.data<int64_t>(),
                   .count = std::ssize(ranges_),
                   .chunks = chunks,
                   .lrs = Place<const double>(values_, kRatesAt),
                   .narrow_type = narrow_type};
  graphs_.Run(std::exchange(waiting_, {}));
  waiting_norm_ = waiting_losses_ = {};
}

}  // namespace lathe
