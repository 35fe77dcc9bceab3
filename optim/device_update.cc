#include "lathe/optim/device_update.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <variant>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/update_kernels.h"
#include "lathe/optim/grad_scaler.h"

namespace lathe {
namespace {

// Makes `bytes` a buffer of at least `size` bytes.
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

}  // namespace

Tensor CommonGradScale(ParameterArena& arena) {
  const auto& entries = arena.entries();
  const LeafGradient& first = entries[0].parameter.tensor.impl()->gradient();
  const bool same =
      std::all_of(entries.begin(), entries.end(), [&](const ParameterArena::Entry& entry) {
        const LeafGradient& gradient = entry.parameter.tensor.impl()->gradient();
        return gradient.scale == 1 && gradient.device_scale == first.device_scale;
      });
  if (same) return Tensor(first.device_scale);
  for (const ParameterArena::Entry& entry : entries) {
    ApplyGradScale(entry.parameter.tensor.impl()->mutable_gradient());
  }
  return {};
}

Tensor DeviceGradNorm(ParameterArena& arena) {
  const AllocationTag allocation_tag = AllocationTag::Buffer("gradient clipping");
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  if (CommonGradScale(arena).defined()) arena.GradsToRead(/*scaled=*/true);
  const auto& kernels = DeviceKernels<DeviceOptimizerKernels>();
  const int64_t bytes = kernels.norm_scratch_bytes(grads.numel());
  const Tensor scratch = Tensor::Empty({bytes}, DType::kU8, grads.device());
  const Tensor norm = Tensor::Empty({}, DType::kF32, grads.device());
  kernels.norm(norm.data<float>(), grads.data<float>(), grads.numel(), scratch.raw_data(), bytes);
  return norm;
}

DeviceUpdater::DeviceUpdater(Device device, int num_groups)
    : device_(device),
      backend_(BackendOf(device)),
      graphs_(backend_),
      values_(Tensor::Empty({static_cast<int64_t>(sizeof(Values) + sizeof(double) * num_groups *
                                                                       StepRates::kMaxRates)},
                            DType::kU8, device)),
      norm_(Tensor::Empty({}, DType::kF32, device)),
      factor_(Tensor::Empty({}, DType::kF32, device)),
      scaled_factor_(Tensor::Empty({}, DType::kF32, device)),
      steps_(Tensor::Zeros({int64_t{sizeof(DeviceStepCounts)}}, DType::kU8, device)) {}

DeviceStepCounts* DeviceUpdater::Steps() const { return Place<DeviceStepCounts>(steps_); }

DeviceStepCounts DeviceUpdater::ReadSteps() const {
  DeviceStepCounts steps;
  backend_.CopyToHost(&steps, steps_.raw_data(), sizeof(steps));
  return steps;
}

void DeviceUpdater::Unscale(ParameterArena& arena, ScalerState* scaler) {
  // Rows without a gradient hold zeros, which the division leaves as they are.
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  waiting_.unscales = true;
  waiting_.unscale = {
      .grads = grads.data<float>(), .n = grads.numel(), .scaler = scaler, .steps = Steps()};
}

Tensor DeviceUpdater::Clip(ParameterArena& arena, double max_norm, const Tensor& losses,
                           const Tensor& latch, const ScalerState* scaler) {
  const AllocationTag allocation_tag = AllocationTag::Buffer("gradient clipping");
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  if (CommonGradScale(arena).defined()) {
    Queue();
    arena.GradsToRead(/*scaled=*/true);
  }
  const int64_t scratch_bytes =
      DeviceKernels<DeviceOptimizerKernels>().norm_scratch_bytes(grads.numel());
  Reserve(&scratch_, scratch_bytes, device_);
  const Tensor results = waiting_results_ = Tensor::Empty({2}, DType::kF32, device_);
  waiting_losses_ = losses;
  waiting_values_.clip = {.max_norm = static_cast<float>(max_norm),
                          .smallest_scale = GradScaler::kSmallestScale,
                          .results = results.data<float>(),
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
                   .latch = DataOrNull(latch),
                   .scaler = scaler};
  for (const ParameterArena::Entry& entry : arena.entries()) {
    entry.parameter.tensor.impl()->mutable_gradient().device_scale = factor_.impl();
  }
  return results;
}

bool DeviceUpdater::Step(ParameterArena& arena, const DeviceMethod& method,
                         std::vector<DeviceRange> ranges, DType narrow_type, const Tensor& counters,
                         const StepRates& rates, ScalerState* scaler) {
  const Tensor& values = arena.values();
  const Tensor& grads = arena.GradsToRead(/*scaled=*/false);
  const Tensor factor = CommonGradScale(arena);
  const int64_t chunks = NumberChunks(ranges);
  if (ranges != ranges_ || !ranges_there_.defined()) {
    const auto count = static_cast<int64_t>(ranges.size());  // 0 if all are frozen
    const int64_t room = std::max<int64_t>(count, 1);
    Reserve(&ranges_there_, room * static_cast<int64_t>(sizeof(DeviceRange)), device_);
    Reserve(&rates_, room * static_cast<int64_t>(sizeof(DeviceRates)), device_);
    if (count > 0) {
      backend_.CopyToDevice(ranges_there_.raw_data(), ranges.data(),
                            count * static_cast<int64_t>(sizeof(DeviceRange)));
    }
    ranges_ = std::move(ranges);
  }
  const bool has_scratch = std::holds_alternative<update_rules::Lamb>(method.update) ||
                           std::holds_alternative<update_rules::Adafactor>(method.update);
  if (has_scratch) {
    Reserve(&rule_scratch_, UpdateScratchBytes(chunks, std::ssize(ranges_), method.means), device_);
  }
  waiting_values_.rates = rates.values;
  waiting_lrs_ = rates.lrs;
  waiting_.steps = true;
  DeviceUpdate::Step& step = waiting_.step;
  step = {.rule = method.rule,
          .adamw = method.adamw,
          .sgd = method.sgd,
          .update = method.update,
          .p = values.data<float>(),
          .m = DataOrNull(method.m),
          .v = DataOrNull(method.v),
          .last = DataOrNull(method.last),
          .scratch = has_scratch ? rule_scratch_.raw_data() : nullptr,
          .grads = grads.data<float>(),
          .factor = DataOrNull(factor),
          .ranges = Place<const DeviceRange>(ranges_there_),
          .rates = Place<DeviceRates>(rates_),
          .counters = counters.data<int64_t>(),
          .count = std::ssize(ranges_),
          .chunks = chunks,
          .values = nullptr,
          .lrs = nullptr,
          .scaled = {},
          .narrow_type = narrow_type};
  const bool counted = scaler != nullptr || factor.defined();
  if (scaler != nullptr) {
    step.scaled = {.scaler = scaler,
                   .steps = Steps(),
                   .clip = DataOrNull(factor),
                   .factor = scaled_factor_.data<float>()};
    step.factor = scaled_factor_.data<float>();
  } else if (factor.defined()) {
    step.scaled = {.scaler = nullptr, .steps = Steps(), .clip = DataOrNull(factor)};
  }
  Queue();
  return counted;
}

void DeviceUpdater::Queue() {
  DeviceUpdate update = std::exchange(waiting_, {});
  if (update.clips || update.steps) {
    const std::span<const double> lrs = waiting_lrs_;
    std::vector<char> values(sizeof(Values) + lrs.size_bytes());
    std::memcpy(values.data(), &waiting_values_, sizeof(Values));
    if (!lrs.empty()) std::memcpy(values.data() + sizeof(Values), lrs.data(), lrs.size_bytes());
    Check(std::ssize(values) <= values_.numel(), "optimizer", "too many rates for one step");
    backend_.CopyToDevice(values_.raw_data(), values.data(), std::ssize(values));
    update.clip.values =
        update.clips ? Place<ClipValues>(values_, offsetof(Values, clip)) : nullptr;
    update.step.values =
        update.steps ? Place<RateValues>(values_, offsetof(Values, rates)) : nullptr;
    update.step.lrs = update.steps ? Place<double>(values_, sizeof(Values)) : nullptr;
  }
  if (update.unscales || update.clips || update.steps) graphs_.Run(update);
  waiting_lrs_.clear();
  waiting_results_ = waiting_losses_ = {};
}

}  // namespace lathe
