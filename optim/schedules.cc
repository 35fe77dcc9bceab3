#include "lathe/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "lathe/core/checkpoint/state_dict.h"

namespace lathe {
namespace {

using std::numbers::pi;

constexpr const char* kPlateau = "reduce_lr_on_plateau";

double Ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

// Returns 1 at progress 0 and 0 after half a cycle.
double Cosine(double cycles, double progress) {
  return 0.5 * (1 + std::cos(pi * cycles * 2 * progress));
}

// Returns the step at which the schedule ends.
int64_t LastStep(const std::string& name, const ScheduleOptions& o) {
  if (!o.num_training_steps) {
    throw InvalidArgument("[" + name + "] num_training_steps is required",
                          "set it to the number of optimizer steps: epochs times batches");
  }
  return *o.num_training_steps;
}

double Polynomial(int64_t step, double base_lr, const ScheduleOptions& o) {
  const int64_t last_step = LastStep("polynomial", o);
  if (!(base_lr > o.lr_end)) {
    throw InvalidArgument("[polynomial] lr_end " + std::to_string(o.lr_end) +
                          " must be smaller than the learning rate " + std::to_string(base_lr));
  }
  if (step > last_step) {
    return o.lr_end / base_lr;
  }
  const double remaining = 1 - Ratio(step - o.num_warmup_steps, last_step - o.num_warmup_steps);
  return ((base_lr - o.lr_end) * std::pow(remaining, o.power) + o.lr_end) / base_lr;
}

double InverseSqrt(int64_t step, const ScheduleOptions& o) {
  const int64_t scale = o.timescale.value_or(o.num_warmup_steps > 0 ? o.num_warmup_steps : 10000);
  Check(scale > 0, "inverse_sqrt", "timescale must be positive but is ", scale);
  return 1 / std::sqrt(Ratio(step + scale - o.num_warmup_steps, scale));
}

double MinLrRate(double base_lr, const ScheduleOptions& o) {
  Check(o.min_lr.has_value() != o.min_lr_rate.has_value(), "cosine_with_min_lr",
        "expected exactly one of min_lr and min_lr_rate but got ",
        o.min_lr.has_value() ? "both" : "neither");
  if (o.min_lr_rate) {
    return *o.min_lr_rate;
  }
  // A base rate of 0 has no ratio to min_lr and stays 0, whatever the factor.
  return base_lr > 0 ? *o.min_lr / base_lr : 0;
}

enum class Curve { kLinear, kCosine, kOneMinusSqrt };

Curve CurveOf(const char* option, const std::string& name) {
  if (name == "linear") return Curve::kLinear;
  if (name == "cosine") return Curve::kCosine;
  if (name == "1-sqrt") return Curve::kOneMinusSqrt;
  throw InvalidArgument(std::string("[warmup_stable_decay] ") + option +
                        " must be linear, cosine or 1-sqrt but is \"" + name + "\"");
}

double WarmupStableDecay(int64_t step, const ScheduleOptions& o) {
  const Curve warmup_curve = CurveOf("warmup_type", o.warmup_type);
  const Curve decay_curve = CurveOf("decay_type", o.decay_type);
  Check(o.num_decay_steps.has_value(), "warmup_stable_decay", "num_decay_steps is required");
  const int64_t decay = *o.num_decay_steps;
  const int64_t stable = o.num_stable_steps
                             ? *o.num_stable_steps
                             : LastStep("warmup_stable_decay", o) - o.num_warmup_steps - decay;
  const int64_t decay_start = o.num_warmup_steps + stable;
  double factor = 0;
  if (step < o.num_warmup_steps) {
    const double progress = Ratio(step, o.num_warmup_steps);
    factor = warmup_curve == Curve::kLinear   ? progress
             : warmup_curve == Curve::kCosine ? 0.5 * (1 - std::cos(pi * progress))
                                              : 1 - std::sqrt(1 - progress);
  } else if (step < decay_start) {
    return 1;
  } else if (step < decay_start + decay) {
    const double progress = Ratio(step - decay_start, decay);
    factor = decay_curve == Curve::kLinear   ? 1 - progress
             : decay_curve == Curve::kCosine ? Cosine(o.num_cycles.value_or(0.5), progress)
                                             : 1 - std::sqrt(progress);
  }
  return std::max(0.0, factor * (1 - o.min_lr_ratio) + o.min_lr_ratio);
}

NamedSettings SettingsOf(const std::string& name, const ScheduleOptions& o) {
  const auto exact = [](const std::optional<double>& value) {
    return value ? ExactText(*value) : "not set";
  };
  const auto whole = [](const std::optional<int64_t>& value) {
    return value ? std::to_string(*value) : "not set";
  };
  NamedSettings settings = {{"lr_scheduler_type", name},
                            {"num_warmup_steps", whole(o.num_warmup_steps)},
                            {"num_training_steps", whole(o.num_training_steps)},
                            {"num_cycles", exact(o.num_cycles)},
                            {"power", exact(o.power)},
                            {"lr_end", exact(o.lr_end)},
                            {"min_lr", exact(o.min_lr)},
                            {"min_lr_rate", exact(o.min_lr_rate)},
                            {"timescale", whole(o.timescale)},
                            {"num_decay_steps", whole(o.num_decay_steps)},
                            {"num_stable_steps", whole(o.num_stable_steps)},
                            {"warmup_type", o.warmup_type},
                            {"decay_type", o.decay_type},
                            {"min_lr_ratio", exact(o.min_lr_ratio)},
                            {"mode", o.mode},
                            {"factor", exact(o.factor)},
                            {"patience", whole(o.patience)},
                            {"threshold", exact(o.threshold)},
                            {"cooldown", whole(o.cooldown)}};
  for (auto& [key, value] : settings) key.insert(0, "schedule's ");
  return settings;
}

class LambdaScheduler : public Scheduler {
 public:
  LambdaScheduler(std::string name, Optimizer& optimizer, ScheduleOptions options)
      : optimizer_(optimizer),
        settings_(SettingsOf(name, options)),
        schedule_(std::make_shared<RateSchedule>()) {
    std::vector<double> initial;
    for (int group = 0; group < optimizer.num_groups(); ++group) {
      initial.push_back(optimizer.initial_lr(group));
    }
    // The factor depends on the initial rate in some schedules. All groups use the factor of the
    // first group's rate, as Transformers' get_scheduler uses that of the optimizer's default rate.
    schedule_->rate = [name = std::move(name), initial = std::move(initial),
                       options = std::move(options)](int group, int64_t step) {
      return initial[group] * ScheduleMultiplier(name, step, initial[0], options);
    };
    for (int group = 0; group < optimizer.num_groups(); ++group) {
      optimizer.SetLr(group, schedule_->rate(group, 0));
    }
  }
  void Step() override { optimizer_.Advance(schedule_); }
  double last_lr(int group) const override { return optimizer_.lr(group); }
  NamedSettings Settings() const override { return settings_; }
  lathe::StateDict StateDict() const override {
    optimizer_.lr();  // catches up with the device
    lathe::StateDict state;
    state.values["step"] = schedule_->step;
    return state;
  }
  void LoadStateDict(const lathe::StateDict& state) override {
    schedule_->step = state.Get<int64_t>("scheduler", "step");
    for (int group = 0; group < optimizer_.num_groups(); ++group)
      optimizer_.SetLr(group, schedule_->rate(group, schedule_->step));
  }

 private:
  Optimizer& optimizer_;
  const NamedSettings settings_;
  std::shared_ptr<RateSchedule> schedule_;
};

// Follows torch.optim.lr_scheduler.ReduceLROnPlateau with a relative threshold.
class PlateauScheduler : public Scheduler {
 public:
  PlateauScheduler(Optimizer& optimizer, ScheduleOptions options)
      : optimizer_(optimizer), options_(std::move(options)), maximize_(options_.mode == "max") {
    Check(maximize_ || options_.mode == "min", kPlateau, "mode must be min or max but is \"",
          options_.mode, "\"");
    Check(options_.factor < 1, kPlateau, "factor must be below 1 but is ", options_.factor);
    best_ = maximize_ ? -std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::infinity();
  }
  void Step() override {}
  void StepMetric(double metric) override {
    const bool better = maximize_ ? metric > best_ * (1 + options_.threshold)
                                  : metric < best_ * (1 - options_.threshold);
    if (better) {
      best_ = metric;
      num_bad_ = 0;
    } else {
      ++num_bad_;
    }
    if (cooldown_left_ > 0) {
      --cooldown_left_;
      num_bad_ = 0;
    }
    if (num_bad_ > options_.patience) {
      Reduce();
      cooldown_left_ = options_.cooldown;
      num_bad_ = 0;
    }
  }
  double last_lr(int group) const override { return optimizer_.lr(group); }
  NamedSettings Settings() const override { return SettingsOf(kPlateau, options_); }
  lathe::StateDict StateDict() const override {
    lathe::StateDict state;
    state.values = {{"num_bad_epochs", num_bad_}, {"cooldown_counter", cooldown_left_}};
    // JSON has no infinity, the value before the first metric.
    state.values["best"] = std::isfinite(best_) ? nlohmann::json(best_) : nlohmann::json();
    return state;
  }
  void LoadStateDict(const lathe::StateDict& state) override {
    num_bad_ = state.Get<int64_t>("scheduler", "num_bad_epochs");
    cooldown_left_ = state.Get<int64_t>("scheduler", "cooldown_counter");
    if (!state.values.value("best", nlohmann::json()).is_null())
      best_ = state.Get<double>("scheduler", "best");
  }

 private:
  void Reduce() {
    constexpr double kEps = 1e-8;  // a smaller change is not made, as in PyTorch
    for (int group = 0; group < optimizer_.num_groups(); ++group) {
      const double old_lr = optimizer_.lr(group);
      const double new_lr = std::max(old_lr * options_.factor, options_.min_lr.value_or(0));
      if (old_lr - new_lr > kEps) {
        optimizer_.SetLr(group, new_lr);
      }
    }
  }

  Optimizer& optimizer_;
  ScheduleOptions options_;
  bool maximize_;
  double best_;
  int64_t num_bad_ = 0;
  int64_t cooldown_left_ = 0;
};

}  // namespace

lathe::StateDict Scheduler::StateDict() const { return {}; }
void Scheduler::LoadStateDict(const lathe::StateDict&) {}

const std::vector<std::string>& ScheduleNames() {
  static const std::vector<std::string> names = {"linear",
                                                 "cosine",
                                                 "cosine_with_restarts",
                                                 "polynomial",
                                                 "constant",
                                                 "constant_with_warmup",
                                                 "inverse_sqrt",
                                                 kPlateau,
                                                 "cosine_with_min_lr",
                                                 "warmup_stable_decay"};
  return names;
}

// The formulas are the *_lr_lambda functions of transformers/optimization.py.
double ScheduleMultiplier(const std::string& name, int64_t step, double base_lr,
                          const ScheduleOptions& o) {
  const auto& names = ScheduleNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known;
    for (const std::string& each : names) {
      known += (known.empty() ? "" : ", ") + each;
    }
    throw InvalidArgument("unknown schedule \"" + name + "\"", "known schedules: " + known);
  }
  Check(name != kPlateau, kPlateau, "the rate depends on the metric, not on the step alone");
  if (name == "constant") {
    return 1;
  }
  if (name == "warmup_stable_decay") {  // has its own kinds of warm-up
    return WarmupStableDecay(step, o);
  }
  // Computed even during the warm-up, so that a wrong option is reported at once.
  const double min_lr_rate = name == "cosine_with_min_lr" ? MinLrRate(base_lr, o) : 0;
  const double polynomial =
      name == "polynomial" ? Polynomial(std::max(step, o.num_warmup_steps), base_lr, o) : 0;
  const bool ends = name != "constant_with_warmup" && name != "inverse_sqrt";
  const int64_t last_step = ends ? LastStep(name, o) : 0;
  if (step < o.num_warmup_steps) {
    return Ratio(step, o.num_warmup_steps);
  }
  const int64_t decay_steps = last_step - o.num_warmup_steps;
  const double progress = Ratio(step - o.num_warmup_steps, decay_steps);
  if (name == "constant_with_warmup") {
    return 1;
  }
  if (name == "linear") {
    return std::max(0.0, Ratio(last_step - step, decay_steps));
  }
  if (name == "cosine") {
    return std::max(0.0, Cosine(o.num_cycles.value_or(0.5), progress));
  }
  if (name == "cosine_with_restarts") {
    return progress >= 1
               ? 0
               : std::max(0.0, Cosine(0.5, std::fmod(o.num_cycles.value_or(1) * progress, 1)));
  }
  if (name == "polynomial") {
    return polynomial;
  }
  if (name == "inverse_sqrt") {
    return InverseSqrt(step, o);
  }
  return std::max(0.0, Cosine(o.num_cycles.value_or(0.5), progress) * (1 - min_lr_rate) +
                           min_lr_rate);  // cosine_with_min_lr
}

std::unique_ptr<Scheduler> GetScheduler(const std::string& name, Optimizer& optimizer,
                                        ScheduleOptions options) {
  if (name == kPlateau) {
    return std::make_unique<PlateauScheduler>(optimizer, std::move(options));
  }
  return std::make_unique<LambdaScheduler>(name, optimizer, std::move(options));
}

}  // namespace lathe
