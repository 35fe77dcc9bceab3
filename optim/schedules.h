// Learning-rate schedules by Transformers' `get_scheduler` names, counted in optimizer steps.
//
//   ScheduleOptions options = {.num_warmup_steps = 100, .num_training_steps = 1000};
//   auto scheduler = GetScheduler("linear", optimizer, options);
//   optimizer.Step(); scheduler->Step();
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/optim/optimizer.h"

namespace lathe {

// The defaults are those of get_scheduler. A schedule ignores options that it has no use for.
struct ScheduleOptions {
  int64_t num_warmup_steps = 0;
  std::optional<int64_t> num_training_steps = {};  // required by all that end at a step
  std::optional<double> num_cycles = {};  // default: 0.5 for cosine, 1 for cosine_with_restarts
  double power = 1.0;                     // polynomial
  double lr_end = 1e-7;                   // polynomial
  std::optional<double> min_lr = {};      // cosine_with_min_lr: this or min_lr_rate; plateau
  std::optional<double> min_lr_rate = {};
  std::optional<int64_t> timescale = {};        // inverse_sqrt: default num_warmup_steps or 10000
  std::optional<int64_t> num_decay_steps = {};  // warmup_stable_decay: required
  std::optional<int64_t> num_stable_steps = {};
  std::string warmup_type = "linear";  // warmup_stable_decay: linear, cosine, 1-sqrt
  std::string decay_type = "cosine";
  double min_lr_ratio = 0;   // warmup_stable_decay
  std::string mode = "min";  // reduce_lr_on_plateau: min or max
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  int64_t cooldown = 0;
};

// Returns the factor on the base rate at optimizer step `step` (0-based). A pure function. Throws
// for an unknown name, with the known ones, and without the number of steps that the schedule
// needs. Throws for reduce_lr_on_plateau, which is no function of the step. `base_lr` matters only
// to polynomial and to cosine_with_min_lr with min_lr.
double ScheduleMultiplier(const std::string& name, int64_t step, double base_lr,
                          const ScheduleOptions& options);

const std::vector<std::string>& ScheduleNames();

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // Call it after each optimizer step. The scheduler skips its step whenever its optimizer skips
  // one.
  virtual void Step() = 0;
  // Call it with the metric after each evaluation. Only reduce_lr_on_plateau uses it.
  virtual void StepMetric(double) {}
  virtual double last_lr(int group = 0) const = 0;
  // Returns the settings that decide on the rates, as names and values. Accelerator::Prepare throws
  // unless they are the same on all ranks (preflight).
  virtual NamedSettings Settings() const { return {}; }
  // Returns how far the schedule has advanced (core/checkpoint/state_dict.h). May wait for the
  // device.
  virtual lathe::StateDict StateDict() const;
  // Goes on from there, and sets the optimizer's rates if they are a function of the step. Load the
  // optimizer's state, too.
  virtual void LoadStateDict(const lathe::StateDict& state);
};

// Sets the optimizer's rates for step 0 at once, as LambdaLR does. The optimizer must outlive the
// scheduler.
std::unique_ptr<Scheduler> GetScheduler(const std::string& name, Optimizer& optimizer,
                                        ScheduleOptions options);

}  // namespace lathe
