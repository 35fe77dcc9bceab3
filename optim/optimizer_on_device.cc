// The part of Optimizer for parameters on a device. It queues the work there, and later it reads
// back which steps were taken.
#include <limits>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizer.h"

namespace lathe {

DeviceUpdater& Optimizer::Updater() {
  const Device device = arena_->values().device();
  if (updater_ == nullptr || updater_->device() != device) {
    ledger_.UseDevice(nullptr);
    const AllocationTag allocation_tag = AllocationTag::State("optimizer state");
    updater_ = std::make_unique<DeviceUpdater>(device, num_groups());
    updater_->graphs().Use(use_graphs_);
    ledger_.UseDevice(updater_.get());
  }
  return *updater_;
}

void Optimizer::UseGraphs(bool on) {
  use_graphs_ = on;
  if (updater_ != nullptr) updater_->graphs().Use(on);
}

GraphStatistics Optimizer::graph_statistics() const {
  return updater_ == nullptr ? GraphStatistics() : updater_->graphs().statistics();
}

void Optimizer::UpdateOnDevice(const DeviceMethod& method) {
  Storage& storage = *arena_->values().impl()->storage;
  std::vector<DeviceRange> ranges;
  std::vector<TensorImpl*> narrowed;   // the update keeps their low-precision copies current
  std::vector<TensorImpl*> unchanged;  // frozen, so their low-precision copies stay current
  DType narrow_type = DType::kBF16;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (!range.parameter.requires_grad()) {
      TensorImpl& frozen = *range.parameter.impl();
      if (frozen.low_precision_version == storage.version()) unchanged.push_back(&frozen);
      continue;
    }
    DeviceRange to = {.begin = range.begin, .n = range.parameter.numel()};
    to.weight_decay = weight_decay_[range.group];
    to.group = range.group;
    to.counter = static_cast<int32_t>(i);
    TensorImpl& parameter = *range.parameter.impl();
    const TensorImpl* narrow = parameter.low_precision.get();
    if (narrow != nullptr && parameter.low_precision_version == storage.version() &&
        (narrowed.empty() || narrow->dtype == narrow_type)) {
      narrow_type = narrow->dtype;
      to.narrow = Tensor(parameter.low_precision).raw_data();
      narrowed.push_back(&parameter);
    }
    ranges.push_back(to);
  }
  DeviceUpdater& updater = Updater();
  const bool scaled = grad_scaler() != nullptr;
  const StepRates rates = scaled ? ledger_.QueueScaledStep() : ledger_.CurrentRates();
  if (scaled) unscaler_.RecordQueuedStep();
  ledger_.RecordDeviceStep(
      updater.Step(*arena_, method, std::move(ranges), narrow_type, steps_, rates, Scaler()));
  storage.BumpVersion();
  for (TensorImpl* parameter : narrowed) parameter->low_precision_version = storage.version();
  for (TensorImpl* parameter : unchanged) parameter->low_precision_version = storage.version();
}

ScalerState* Optimizer::Scaler() { return unscaler_.StateOn(arena_->values().device()); }

void Optimizer::UseGradScaler(std::shared_ptr<GradScaler> scaler) {
  ledger_.CatchUp();
  unscaler_.Use(std::move(scaler));
}

void Optimizer::Advance(const std::shared_ptr<RateSchedule>& schedule) {
  if (may_step()) ledger_.Advance(schedule);
}

Tensor StepGuard::PrepareClip(Optimizer& optimizer, double max_norm, const Tensor& losses) {
  const Device device = optimizer.arena().values().device();
  Check(!device.is_cpu(), "step_guard", "the parameters lie on the host; use ClipGradNorm");
  Check(max_norm >= 0, "step_guard", "max_norm must be at least 0 but is ", max_norm);
  optimizer.Unscale();
  const AllocationTag allocation_tag = AllocationTag::Buffer("gradient clipping");
  if (!latch_.defined()) latch_ = Tensor::Zeros({}, DType::kF32, device);
  const double most = max_norm > 0 ? max_norm : std::numeric_limits<double>::infinity();
  const Tensor results =
      optimizer.Updater().Clip(optimizer.arena(), most, losses, latch_, optimizer.Scaler());
  scale_ = results.Slice(1, 2).Reshape({});
  return results.Slice(0, 1).Reshape({});
}

Tensor StepGuard::Clip(Optimizer& optimizer, double max_norm, const Tensor& losses) {
  Tensor norm = PrepareClip(optimizer, max_norm, losses);
  optimizer.Updater().Queue();
  return norm;
}

Tensor StepGuard::ClipAndStep(Optimizer& optimizer, double max_norm, const Tensor& losses) {
  if (!optimizer.may_step()) return {};
  Tensor norm = PrepareClip(optimizer, max_norm, losses);
  optimizer.Step();  // queues both
  return norm;
}

}  // namespace lathe
