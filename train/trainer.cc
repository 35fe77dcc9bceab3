#include "lathe/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/error.h"
#include "lathe/core/file.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/support/schedule_kwargs.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
// Set before main runs, which is as near to the start of the process as a program can tell.
const Clock::time_point process_start = Clock::now();
// Snapshots of the model are taken so often that they cost at most 1 / kSnapshotShare of the time.
constexpr int kSnapshotShare = 200;
// The least time between snapshots on a GPU, where each waits for all queued work.
constexpr std::chrono::seconds kLeastGap{1};
// On a GPU, losses are read after this many steps at the latest.
constexpr int64_t kMostUnread = 32;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns a number of steps. A value below 1 is a share of all steps.
int64_t StepsOf(double value, int64_t max_steps) {
  const double steps = value < 1 ? std::ceil(value * static_cast<double>(max_steps)) : value;
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

std::string MetricName(const std::string& name) {
  if (name.empty()) return "eval_loss";
  return name.starts_with("eval_") ? name : "eval_" + name;
}

// A high accuracy is good; a high loss or error is not.
bool GreaterIsBetter(const FinetuneArguments& options, const std::string& metric) {
  return options.greater_is_better.value_or(!metric.ends_with("loss") && !metric.ends_with("mse") &&
                                            !metric.ends_with("runtime"));
}

DataLoaderOptions LoaderOptions(const FinetuneArguments& options, const TaskData& train,
                                int num_processes) {
  const int64_t batch_size = options.per_device_train_batch_size * num_processes;
  if (options.dataloader_drop_last && train.dataset->size() < batch_size) {
    throw InvalidArgument(train.path + ": " + std::to_string(train.dataset->size()) +
                              " samples make no whole batch of " + std::to_string(batch_size),
                          "leave --dataloader_drop_last out or use a smaller batch");
  }
  return {.batch_size = batch_size,
          .shuffle = options.shuffle_train,
          .group_by_length = options.group_by_length,
          .drop_last = options.dataloader_drop_last,
          .seed = static_cast<uint64_t>(options.data_seed.value_or(options.seed))};
}

AdamWOptions OptimizerOptions(const FinetuneArguments& options) {
  return {.lr = options.learning_rate,
          .beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .eps = options.adam_epsilon,
          .weight_decay = options.weight_decay};
}

ScheduleOptions MakeScheduleOptions(const FinetuneArguments& options, int64_t max_steps) {
  ScheduleOptions schedule =
      ParseScheduleKwargs(options.lr_scheduler_type, options.lr_scheduler_kwargs);
  schedule.num_training_steps = max_steps;
  schedule.num_warmup_steps =
      options.warmup_steps > 0
          ? options.warmup_steps
          : static_cast<int64_t>(std::ceil(static_cast<double>(max_steps) * options.warmup_ratio));
  return schedule;
}

std::unique_ptr<Scheduler> MakeScheduler(const FinetuneArguments& options, Optimizer& optimizer,
                                         int64_t max_steps) {
  try {
    return GetScheduler(options.lr_scheduler_type, optimizer,
                        MakeScheduleOptions(options, max_steps));
  } catch (const Error& e) {
    throw UsageError(
        "--lr_scheduler_type " + options.lr_scheduler_type + ": " + WithoutTag(e.message()),
        e.hint().empty() ? "set it with --lr_scheduler_kwargs '{\"NAME\": VALUE}'" : e.hint());
  }
}

}  // namespace

Trainer::Trainer(const FinetuneArguments& options, Accelerator& accelerator, Task& task,
                 OutputDir* out)
    : options_(options),
      accelerator_(accelerator),
      task_(task),
      out_(out),
      model_(*task.model),
      loader_(task.train.dataset, LoaderOptions(options, task.train, accelerator.num_processes())),
      optimizer_(DecayGroups(model_.Parameters(), options.weight_decay), OptimizerOptions(options)),
      metric_name_(MetricName(options.metric_for_best_model)),
      greater_is_better_(GreaterIsBetter(options, metric_name_)),
      reads_each_step_(accelerator.device().is_cpu() || accelerator.use_distributed()),
      good_values_(out == nullptr ? "" : out->path()) {
  CheckMetricName();
  steps_per_epoch_ = DivideUp(loader_.size(), options.gradient_accumulation_steps);
  const double planned =
      std::ceil(options.num_train_epochs * static_cast<double>(steps_per_epoch_));
  state_.max_steps = options.max_steps > 0 ? options.max_steps : static_cast<int64_t>(planned);
  state_.num_train_epochs = DivideUp(state_.max_steps, steps_per_epoch_);
  state_.logging_steps = StepsOf(options.logging_steps, state_.max_steps);
  state_.eval_steps = StepsOf(options.eval_steps, state_.max_steps);
  state_.train_batch_size = options.per_device_train_batch_size;
  scheduler_ = MakeScheduler(options, optimizer_, state_.max_steps);
  accelerator_.Prepare(loader_, model_, optimizer_, *scheduler_);
}

// Checks the name now: a misspelt metric should not end the run at its first evaluation.
void Trainer::CheckMetricName() const {
  if (options_.eval_strategy == "no") return;
  TokenizedDataset nothing;
  nothing.kind = task_.labels.kind();
  nothing.num_labels = task_.labels.num_labels();
  const nlohmann::json metrics = EvalMetrics({}, nothing);
  if (metrics.contains(metric_name_)) return;
  std::string names;
  for (const auto& [name, value] : metrics.items()) {
    const bool of_speed = name.ends_with("runtime") || name.find("samples") != std::string::npos ||
                          name.ends_with("per_second");
    if (!of_speed) names += (names.empty() ? "" : ", ") + name.substr(5);
  }
  throw UsageError("--metric_for_best_model must be one of " + names + " but is \"" +
                   options_.metric_for_best_model + "\"");
}

std::string Trainer::Plan() const {
  std::string plan = FormatCount(state_.max_steps) + " (" + FormatCount(steps_per_epoch_) +
                     " an epoch), batches of " +
                     std::to_string(options_.per_device_train_batch_size);
  if (options_.gradient_accumulation_steps > 1) {
    plan += " x " + std::to_string(options_.gradient_accumulation_steps);
  }
  if (accelerator_.use_distributed()) {
    plan += " on each of " + std::to_string(accelerator_.num_processes()) + " processes";
  }
  return plan;
}

void Trainer::Train() {
  const auto start = Clock::now();
  progress_.emplace(Progress::Options{.title = "train",
                                      .total = state_.max_steps,
                                      .enabled = !options_.disable_tqdm,
                                      .prints = accelerator_.is_main_process()});
  model_.Train();
  optimizer_.ZeroGrad();
  accelerator_.SetPhase("training");
  try {
    while (state_.global_step < state_.max_steps && !interrupted_) TrainEpoch();
    ReadLosses();
    CheckLastUpdate();
    accelerator_.CheckParametersAgree();
  } catch (const Error& e) {
    if (e.code() != absl::StatusCode::kUnavailable || state_.global_step == 0) throw;
    SaveWithoutTheOthers(e);
  }
  progress_.reset();
  if (options_.load_best_model_at_end && best_values_.defined()) {
    Tensor values = optimizer_.arena().values();
    values.CopyFrom(best_values_);
  }
  metrics_ = TrainMetrics(SecondsSince(start));
  state_.Log(metrics_);
  Save();
  try {
    accelerator_.WaitHoweverLong();  // so that no rank goes on before the model is saved
  } catch (const Error& e) {
    SaveWithoutTheOthers(e);
  }
}

void Trainer::TrainEpoch() {
  const int64_t epoch = loader_.epoch();
  int64_t place = 0;
  for (const Batch& batch : loader_) {
    Accumulate(batch);
    ++place;
    if (!accelerator_.sync_gradients()) continue;
    FinishStep();
    state_.epoch = static_cast<double>(epoch) +
                   static_cast<double>(place) / static_cast<double>(loader_.size());
    AfterStep(/*epoch_ends=*/place == loader_.size());
    if (interrupted_ || state_.global_step == state_.max_steps) break;
  }
}

void Trainer::Accumulate(const Batch& batch) {
  const auto accumulation = accelerator_.Accumulate(model_);
  window_.push_back(batch);
  accelerator_.Backward(model_, batch, [this](const Batch& b) {
    Tensor loss = model_.Forward(b).loss;
    if (Interrupted()) accelerator_.RequestStop();
    return loss;
  });
  samples_seen_ += batch.whole->size;
  state_.num_input_tokens_seen += batch.whole->num_tokens;
}

void Trainer::FinishStep() {
  const double most = options_.max_grad_norm;
  const bool snapshot = out_ != nullptr && SnapshotIsDue();
  // A bad step is either noticed before its update, or held back by guard_ until it is noticed.
  if (!reads_each_step_ && !snapshot) {
    const Tensor norm = guard_.ClipAndStep(optimizer_, most, accelerator_.LastLosses());
    unread_.push_back({window_, norm, guard_.last_scale()});
    if (std::ssize(unread_) >= kMostUnread) ReadLosses();
  } else {
    if (reads_each_step_) {
      unread_.push_back(
          {window_, most > 0 ? ClipGradNorm(optimizer_, most) : GradNorm(optimizer_)});
    } else {
      const Tensor norm = guard_.Clip(optimizer_, most, accelerator_.LastLosses());
      unread_.push_back({window_, norm, guard_.last_scale()});
    }
    if (ReadLosses() && snapshot) TakeSnapshot();
    optimizer_.Step();
  }
  scheduler_->Step();
  optimizer_.ZeroGrad();
  last_batch_ = window_.back();
  window_.clear();
  ++state_.global_step;
  if (state_.global_step == 1) time_to_first_step_ = SecondsSince(process_start);
}

// Returns true before the first update, and then now and then. The snapshot holds the values that
// have just given a finite loss and gradient.
bool Trainer::SnapshotIsDue() const {
  if (state_.global_step == 0) return true;
  const Clock::duration since = Clock::now() - good_time_;
  return since >= kSnapshotShare * good_duration_ && (reads_each_step_ || since >= kLeastGap);
}

void Trainer::TakeSnapshot() {
  const Clock::time_point start = Clock::now();
  // A parameter may be bad although no loss depends on it so far.
  if (!ParametersAreFinite()) Diverged(state_.global_step, "a parameter is not finite", true, true);
  const Tensor values = optimizer_.arena().values().To(Device{});
  const int problem = good_values_.Take(values.values<float>());
  if (problem != 0 && !std::exchange(warned_of_snapshot_, true)) {
    progress_->Print("warning: " + FileError(out_->path(), problem).message() +
                     "; no copy of the last good model can be kept: if training diverges, none is "
                     "saved");
  }
  good_step_ = state_.global_step + 1;
  good_time_ = Clock::now();
  good_duration_ = good_time_ - start;
}

void Trainer::AfterStep(bool epoch_ends) {
  progress_->Update(1);
  const int64_t step = state_.global_step;
  if (step % state_.logging_steps == 0 || (step == 1 && options_.logging_first_step)) LogStep();
  // Several ranks have to agree on the step after which they stop.
  interrupted_ = interrupted_ || accelerator_.stop_requested() ||
                 (!accelerator_.use_distributed() && Interrupted());
  if (interrupted_) return;
  if (options_.eval_strategy == "epoch"
          ? epoch_ends || step == state_.max_steps
          : options_.eval_strategy == "steps" && step % state_.eval_steps == 0) {
    EvaluateNow();
  }
}

}  // namespace lathe
