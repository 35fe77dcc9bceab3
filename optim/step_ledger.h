// StepLedger: the learning rates of an optimizer's groups, and the count of its steps.
//
// With a GradScaler on a device, only the device knows at first which steps were taken, and so how
// far the schedule has advanced. The host does not wait for the answer. The ledger keeps the steps
// that were queued since then, and catches up when it is asked. Functions marked "may wait" then
// wait for the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lathe/core/kernels/optimizer_kernels.h"

namespace lathe {

class DeviceUpdater;
struct StepRates;

// Learning rates as a function of the schedule's step, and the present step.
struct RateSchedule {
  std::function<double(int group, int64_t step)> rate;
  int64_t step = 0;
};

class StepLedger {
 public:
  // rates: one for each group.
  explicit StepLedger(std::vector<double> rates);

  int num_groups() const { return static_cast<int>(initial_rates_.size()); }
  // These throw for a group that there is not.
  double initial_rate(int group) const;
  double rate(int group);                // may wait
  double used_rate(int group);           // the rate of the last step; may wait
  void SetRate(int group, double rate);  // throws unless finite and at least 0; may wait
  int64_t step_count();                  // the number of steps that were taken; may wait
  bool step_was_skipped();               // true if the last step was skipped; may wait
  // Goes on from another ledger's numbers; rates have one element for each group. May wait.
  void Restore(int64_t step_count, std::vector<double> rates, std::vector<double> used_rates);
  // Makes a step of `schedule` and sets the rates, unless the last step was skipped.
  void Advance(const std::shared_ptr<RateSchedule>& schedule);
  // Catches up on steps with a scaler. May wait.
  void CatchUp();

  // If the host decides about a step, call BeginStep, then SkipStep or TakeStep. If the step is
  // made on a device, call RecordDeviceStep instead of TakeStep.
  void BeginStep();  // may wait
  void SkipStep() { step_was_skipped_ = true; }
  void TakeStep() { ++step_count_; }
  // Returns the rates of a step on a device without a scaler.
  StepRates CurrentRates() const;
  // Returns the rates of the next step with a scaler on a device. That step counts as queued.
  StepRates QueueScaledStep();
  // Records a step on a device. `device_counts`: only the device knows whether it is taken.
  void RecordDeviceStep(bool device_counts);
  // Catches up, and from now on reads the counts of `device`, which are at 0; null: there is none.
  void UseDevice(const DeviceUpdater* device);

 private:
  // Returns the index of a group; throws if there is none.
  size_t At(int group) const;
  // Brings step_count_ up to date.
  void CountSteps();
  // Sets the rates to those of the schedule's step `step`.
  void ApplySchedule(RateSchedule& schedule, int64_t step);

  const std::vector<double> initial_rates_;
  // Up to date after CatchUp:
  std::vector<double> rates_, used_rates_;
  int64_t step_count_ = 0;
  bool step_was_skipped_ = false;
  // Changes since the last CatchUp:
  bool has_unread_steps_ = false;           // a step with a scaler was queued
  bool uncounted_ = false;                  // a step that clipping may skip was queued
  std::shared_ptr<RateSchedule> schedule_;  // the schedule that follows the queued steps
  int64_t queued_advances_ = 0;             // steps of schedule_ that the device knows of
  int64_t next_advances_ = 0;               // later steps of schedule_
  const DeviceUpdater* device_ = nullptr;
  DeviceStepCounts last_read_;  // the device's counts when last read
};

}  // namespace lathe
