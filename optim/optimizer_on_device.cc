// The part of Optimizer for parameters on a device. It queues the work there, and later it reads
// back which steps were taken.
#include <limits>
#include <utility>

#include "lathe/core/asked_by.h"
#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizer.h"

namespace lathe {

DeviceUpdater& Optimizer::Updater() {
  const Device device = arena_->values().device();
  if (updater_ == nullptr || updater_->device() != device) {
    CountSteps();
    settled_ = nullptr;
    const AskedBy asked_by = AskedBy::State("optimizer state");
    updater_ = std::make_unique<DeviceUpdater>(device, num_groups());
    updater_->graphs().Use(use_graphs_);
  }
  return *updater_;
}

void Optimizer::UseGraphs(bool on) {
  use_graphs_ = on;
  if (updater_ != nullptr) updater_->graphs().Use(on);
}

UpdateGraphStatistics Optimizer::graph_statistics() const {
  return updater_ == nullptr ? UpdateGraphStatistics() : updater_->graphs().statistics();
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
  StepRates rates = {.values = {}, .lrs = lr_};
  if (scaler_ != nullptr) {
    // Only the device knows how many steps the schedule has made. It gets the rates for each case.
    if (queued_advances_ + next_advances_ >= StepRates::kMost) Settle();
    queued_advances_ += next_advances_;
    rates.values = {.advance = std::exchange(next_advances_, 0),
                    .advanced = settled_ == nullptr ? 0 : settled_->advanced,
                    .num_rates = queued_advances_ + 1};
    rates.lrs.clear();
    for (int group = 0; group < num_groups(); ++group) {
      rates.lrs.push_back(lr_[group]);
      for (int64_t i = 1; i <= queued_advances_; ++i) {
        rates.lrs.push_back(schedule_->rate(group, schedule_->step + i));
      }
    }
    scaler_->StepIsQueued();
    unsettled_ = true;
  }
  const bool counted =
      Updater().Step(*arena_, method, std::move(ranges), narrow_type, steps_, rates, Scaler());
  counted ? static_cast<void>(uncounted_ = true) : static_cast<void>(++step_count_);
  storage.BumpVersion();
  for (TensorImpl* parameter : narrowed) parameter->low_precision_version = storage.version();
  for (TensorImpl* parameter : unchanged) parameter->low_precision_version = storage.version();
}

ScalerState* Optimizer::Scaler() {
  return scaler_ == nullptr ? nullptr : scaler_->StateOn(arena_->values().device());
}

void Optimizer::UseGradScaler(std::shared_ptr<GradScaler> scaler) {
  Settle();
  scaler_ = std::move(scaler);
}

void Optimizer::Settle() const {
  if (!std::exchange(unsettled_, false)) return;
  const ScaledSteps now = updater_->ReadSteps();
  const ScaledSteps before = settled_ == nullptr ? ScaledSteps() : *settled_;
  settled_ = std::make_unique<ScaledSteps>(now);
  step_count_ += now.taken - before.taken;
  uncounted_ = false;
  step_was_skipped_ = now.skipped != 0;
  const std::shared_ptr<RateSchedule> schedule = std::exchange(schedule_, nullptr);
  const int64_t next = std::exchange(next_advances_, 0);
  queued_advances_ = 0;
  if (now.advanced > before.advanced) {
    Follow(*schedule, schedule->step + now.advanced - before.advanced);
  }
  used_lr_ = lr_;
  if (next > 0 && !step_was_skipped_) Follow(*schedule, schedule->step + next);
}

void Optimizer::CountSteps() const {
  Settle();
  if (!std::exchange(uncounted_, false)) return;
  const ScaledSteps now = updater_->ReadSteps();
  step_count_ += now.taken - (settled_ == nullptr ? 0 : settled_->taken);
  settled_ = std::make_unique<ScaledSteps>(now);
}

void Optimizer::Follow(RateSchedule& schedule, int64_t step) const {
  schedule.step = step;
  for (int group = 0; group < num_groups(); ++group) lr_[group] = schedule.rate(group, step);
}

void Optimizer::Advance(const std::shared_ptr<RateSchedule>& schedule) {
  if (!may_step()) return;
  if (schedule_ != nullptr && schedule_ != schedule) Settle();
  if (unsettled_) {
    schedule_ = schedule;
    ++next_advances_;
  } else if (!step_was_skipped_) {
    Follow(*schedule, schedule->step + 1);
  }
}

bool Optimizer::step_was_skipped() const {
  Settle();
  return step_was_skipped_;
}

double Optimizer::lr(int group) const {
  Settle();
  return lr_[group];
}

void Optimizer::SetLr(int group, double lr) {
  Settle();
  lr_[group] = lr;
}

double Optimizer::used_lr(int group) const {
  Settle();
  return used_lr_[group];
}

int64_t Optimizer::step_count() const {
  CountSteps();
  return step_count_;
}

Tensor StepGuard::PrepareClip(Optimizer& optimizer, double max_norm, const Tensor& losses) {
  const Device device = optimizer.arena().values().device();
  Check(!device.is_cpu(), "step_guard", "the parameters lie on the host; use ClipGradNorm");
  Check(max_norm >= 0, "step_guard", "max_norm must be at least 0 but is ", max_norm);
  optimizer.Unscale();
  const AskedBy asked_by = AskedBy::Buffer("gradient clipping");
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
