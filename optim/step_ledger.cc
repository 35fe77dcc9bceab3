#include "lathe/optim/step_ledger.h"

#include <cmath>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/optim/device_update.h"

namespace lathe {

StepLedger::StepLedger(std::vector<double> rates)
    : initial_rates_(std::move(rates)), rates_(initial_rates_), used_rates_(initial_rates_) {}

size_t StepLedger::At(int group) const {
  Check(group >= 0 && group < num_groups(), "optimizer", "group ", group,
        " does not exist; the number of groups is ", num_groups());
  return static_cast<size_t>(group);
}

double StepLedger::initial_rate(int group) const { return initial_rates_[At(group)]; }

double StepLedger::rate(int group) {
  CatchUp();
  return rates_[At(group)];
}

double StepLedger::used_rate(int group) {
  CatchUp();
  return used_rates_[At(group)];
}

void StepLedger::SetRate(int group, double rate) {
  Check(rate >= 0 && std::isfinite(rate), "optimizer", "lr must be finite and at least 0 but is ",
        rate);
  CatchUp();
  rates_[At(group)] = rate;
}

int64_t StepLedger::step_count() {
  CountSteps();
  return step_count_;
}

bool StepLedger::step_was_skipped() {
  CatchUp();
  return step_was_skipped_;
}

void StepLedger::Restore(int64_t step_count, std::vector<double> rates,
                         std::vector<double> used_rates) {
  CountSteps();
  step_count_ = step_count;
  rates_ = std::move(rates);
  used_rates_ = std::move(used_rates);
  step_was_skipped_ = false;
}

void StepLedger::Advance(const std::shared_ptr<RateSchedule>& schedule) {
  if (schedule_ != nullptr && schedule_ != schedule) CatchUp();
  if (has_unread_steps_) {
    schedule_ = schedule;
    ++next_advances_;
  } else if (!step_was_skipped_) {
    ApplySchedule(*schedule, schedule->step + 1);
  }
}

void StepLedger::CatchUp() {
  if (!std::exchange(has_unread_steps_, false)) return;
  const DeviceStepCounts now = device_->ReadSteps();
  const DeviceStepCounts before = std::exchange(last_read_, now);
  step_count_ += now.taken - before.taken;
  uncounted_ = false;
  step_was_skipped_ = now.skipped != 0;
  const std::shared_ptr<RateSchedule> schedule = std::exchange(schedule_, nullptr);
  const int64_t next = std::exchange(next_advances_, 0);
  queued_advances_ = 0;
  if (now.advanced > before.advanced) {
    ApplySchedule(*schedule, schedule->step + now.advanced - before.advanced);
  }
  used_rates_ = rates_;
  if (next > 0 && !step_was_skipped_) ApplySchedule(*schedule, schedule->step + next);
}

void StepLedger::BeginStep() {
  CatchUp();
  used_rates_ = rates_;
  step_was_skipped_ = false;
}

StepRates StepLedger::CurrentRates() const { return {.values = {}, .lrs = rates_}; }

StepRates StepLedger::QueueScaledStep() {
  // Only the device knows how many steps the schedule has made. It gets the rates for each case.
  if (queued_advances_ + next_advances_ >= StepRates::kMaxRates) CatchUp();
  queued_advances_ += next_advances_;
  StepRates rates = {.values = {.advance = std::exchange(next_advances_, 0),
                                .advanced = last_read_.advanced,
                                .num_rates = queued_advances_ + 1},
                     .lrs = {}};
  for (int group = 0; group < num_groups(); ++group) {
    rates.lrs.push_back(rates_[static_cast<size_t>(group)]);
    for (int64_t i = 1; i <= queued_advances_; ++i) {
      rates.lrs.push_back(schedule_->rate(group, schedule_->step + i));
    }
  }
  has_unread_steps_ = true;
  return rates;
}

void StepLedger::RecordDeviceStep(bool device_counts) {
  device_counts ? static_cast<void>(uncounted_ = true) : static_cast<void>(++step_count_);
}

void StepLedger::UseDevice(const DeviceUpdater* device) {
  CountSteps();
  last_read_ = {};
  device_ = device;
}

void StepLedger::CountSteps() {
  CatchUp();
  if (!std::exchange(uncounted_, false)) return;
  const DeviceStepCounts now = device_->ReadSteps();
  step_count_ += now.taken - last_read_.taken;
  last_read_ = now;
}

void StepLedger::ApplySchedule(RateSchedule& schedule, int64_t step) {
  schedule.step = step;
  for (int group = 0; group < num_groups(); ++group) {
    rates_[static_cast<size_t>(group)] = schedule.rate(group, step);
  }
}

}  // namespace lathe
