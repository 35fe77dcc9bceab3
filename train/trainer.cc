#include "lathe/train/trainer.h"

#include <absl/status/status.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/decision.h"
#include "lathe/train/frozen_encoder.h"
#include "lathe/train/parameters/trained_parameters.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/progress.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/support/schedule_kwargs.h"
#include "lathe/train/trainer_options.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
// Set before main runs, which is as near to the start of the process as a program can tell.
const Clock::time_point process_start = Clock::now();
// Snapshots of the model are taken so often that they cost at most 1 / kSnapshotShare of the time.
constexpr int kSnapshotShare = 200;
// The shortest time between snapshots on a GPU, where each waits for all queued work.
constexpr std::chrono::seconds kMinSnapshotInterval{1};
// On a GPU, losses are read after this many steps at the latest.
constexpr int64_t kMostUnread = 32;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Trainer::Trainer(const TrainingArguments& arguments, Accelerator& accelerator, TrainerInputs inputs,
                 std::vector<std::shared_ptr<Callback>> callbacks)
    : arguments_(CompletedArguments(arguments)),
      accelerator_(accelerator),
      inputs_(CheckedInputs(std::move(inputs), arguments_)),
      callbacks_(std::move(callbacks)),
      out_(inputs_.out),
      model_(PreparedModel(inputs_, arguments_, accelerator.device())),
      loader_(inputs_.train, LoaderOptionsOf(arguments_, inputs_,
                                             ReadBatchProcesses(accelerator.num_processes()))),
      own_optimizer_(MakeOptimizer(arguments_, TrainedGroups(model_, arguments_))),
      optimizer_(*own_optimizer_),
      metric_name_(BestModelMetric(arguments_)),
      greater_is_better_(GreaterIsBetter(arguments_)),
      reads_each_step_(accelerator.device().is_cpu() || accelerator.use_distributed()) {
  CheckAccelerator(accelerator_, arguments_);
  if (arguments_.eval_strategy != "no") CheckMetricName();
  if (out_ == nullptr && saves() && accelerator_.is_main_process()) {
    CheckNotClaimed(arguments_.output_dir);
    own_out_.emplace(arguments_.output_dir, MayUseFilledOutputDir(arguments_));
    out_ = &*own_out_;
  }
  if (out_ != nullptr) claim_.emplace(out_->path());
  if (out_ != nullptr) good_values_.emplace(out_->path());
  steps_per_epoch_ = DivideUp(loader_.size(), arguments_.gradient_accumulation_steps);
  const double planned =
      std::ceil(arguments_.num_train_epochs * static_cast<double>(steps_per_epoch_));
  state_.max_steps =
      arguments_.max_steps > 0 ? arguments_.max_steps : static_cast<int64_t>(planned);
  state_.num_train_epochs = DivideUp(state_.max_steps, steps_per_epoch_);
  state_.logging_steps = StepsOf(arguments_.logging_steps, state_.max_steps);
  state_.eval_steps = StepsOf(arguments_.eval_steps, state_.max_steps);
  if (arguments_.save_strategy == "steps")
    state_.save_steps = StepsOf(arguments_.save_steps, state_.max_steps);
  state_.train_batch_size = arguments_.per_device_train_batch_size;
  state_.is_world_process_zero = accelerator_.is_main_process();
  if (!inputs_.hub_commits.empty()) {
    state_.stateful_callbacks[kHubCommits] = {{"args", nlohmann::json::object()},
                                              {"attributes", inputs_.hub_commits}};
  }
  scheduler_ = MakeScheduler(arguments_, optimizer_, state_.max_steps);
  model_.SetGradientCheckpointing(arguments_.gradient_checkpointing);
  if (!arguments_.freeze_layers.empty()) encodings_.emplace();
  SetDecision(arguments_, /*keep=*/false, model_.config());
  accelerator_.Prepare(loader_, model_, optimizer_, *scheduler_);
  CheckCallbacks();
  CheckSharedFolder();
  if (!arguments_.resume_from_checkpoint.empty() || ReadRestarts() > 0) Resume();
}

// A misspelt metric should not end the run at its first evaluation, so this looks before it.
void Trainer::CheckMetricName() const {
  TokenizedDataset nothing;
  nothing.kind = inputs_.train->kind;
  nothing.num_labels = inputs_.train->num_labels;
  const nlohmann::json metrics = EvalMetrics({}, nothing, arguments_.task_name);
  if (metrics.contains(metric_name_)) return;
  std::string names;
  for (const std::string& name :
       MetricNames(nothing.kind, nothing.num_labels, arguments_.task_name))
    names += (names.empty() ? "" : ", ") + name;
  throw UsageError("metric_for_best_model must be one of " + names + " but is \"" +
                   arguments_.metric_for_best_model + "\"");
}

std::string Trainer::Plan() const {
  // After a restart with fewer processes, these share the batch of all processes before.
  const int64_t processes = accelerator_.num_processes(), batch = loader_.global_batch_size();
  const bool is_even = batch % processes == 0;
  std::string plan = FormatCount(state_.max_steps) + " (" + FormatCount(steps_per_epoch_) +
                     " per epoch), batches of " +
                     std::to_string(is_even ? batch / processes : batch);
  if (arguments_.gradient_accumulation_steps > 1) {
    plan += " x " + std::to_string(arguments_.gradient_accumulation_steps);
  }
  if (accelerator_.use_distributed()) {
    plan += (is_even ? " on each of " : " shared by ") + std::to_string(processes) + " processes";
  }
  return plan;
}

void Trainer::Train() {
  const auto start = Clock::now();
  model_.Train();
  optimizer_.ZeroGrad();
  accelerator_.SetPhase("training");
  const std::string problem = MarkOutput();
  try {
    Call(&Callback::OnTrainBegin);
    if (!problem.empty()) Call(&Callback::OnWarning, problem);
    launcher_ = accelerator_.GatherObject(OwnIdentity().launcher)[0];
    AgreeOnControl();
    EncodeFrozen();
    if (!resumed_from_.empty() && !interrupted_) FinishResumedStep();
    while (state_.global_step < state_.max_steps && !ends()) TrainEpoch();
    ReadStepResults();
    CheckLastUpdate();
    accelerator_.CheckParametersAgree();
    const auto last_step_end = Clock::now();
    if (interrupted_) SaveInterrupted();
    FinishSaving(/*wait=*/true);
    if (keeps_checkpoints()) accelerator_.WaitWithoutTimeout();  // a disk may be slow
    CountBesideSteps(last_step_end);
    StopIfSavingFailed();
    const auto end = Clock::now();
    if (arguments_.load_best_model_at_end) LoadBestModel();
    CountBesideSteps(end);
  } catch (const Error& e) {
    if (e.code() != absl::StatusCode::kUnavailable || state_.global_step == 0) throw;
    SaveWithoutTheOthers(e);
  }
  metrics_ = TrainMetrics(SecondsSince(start));
  Log(metrics_);
  Save();
  try {
    accelerator_.WaitWithoutTimeout();  // so that no rank goes on before the model is saved
  } catch (const Error& e) {
    SaveWithoutTheOthers(e);
  }
  Call(&Callback::OnTrainEnd);
}

void Trainer::EncodeFrozen() {
  // The decision doesn't depend on where a resume begins, so that its bits are the same.
  if (arguments_.freeze_layers.empty() || state_.max_steps <= steps_per_epoch_) return;
  accelerator_.SetPhase("encoding");
  const EncodedSamples encoded = EncodeSamples(
      accelerator_, model_, *inputs_.train,
      {.on_begin = [this](int64_t num_batches) { Call(&Callback::OnEncodeBegin, num_batches); },
       .on_batch = [this] { Call(&Callback::OnEncodeStep); }});
  accelerator_.SetPhase("training");
  interrupted_ = encoded.interrupted;
  if (encoded.rows.defined()) loader_.SetEncoded(encoded.rows);
  if (!encoded.note.empty()) Call(&Callback::OnWarning, encoded.note);
}

void Trainer::TrainEpoch() {
  const int64_t epoch = loader_.epoch();
  // After a resume the first batches of the epoch are left out.
  int64_t place = loader_.StateDict().Get<int64_t>("trainer", "batches");
  epoch_is_open_ = true;
  Call(&Callback::OnEpochBegin);
  for (const Batch& batch : loader_) {
    if (window_.empty()) Call(&Callback::OnStepBegin);
    Accumulate(batch);
    ++place;
    if (!accelerator_.sync_gradients()) {
      Call(&Callback::OnSubstepEnd);
      continue;
    }
    FinishStep();
    state_.epoch = static_cast<double>(epoch) +
                   static_cast<double>(place) / static_cast<double>(loader_.size());
    AfterStep();
    if (ends() || state_.global_step == state_.max_steps) break;
  }
  if (!interrupted_) AfterEpoch();
}

void Trainer::Accumulate(const Batch& batch) {
  const auto accumulation = accelerator_.Accumulate(model_);
  window_.push_back(batch);
  accelerator_.Backward(model_, batch, [this](const Batch& b) {
    Tensor loss = model_.Forward(b).loss;
    if (Interrupted()) accelerator_.RequestStop();
    return loss;
  });
  samples_seen_ += batch.share->global_size;
  state_.num_input_tokens_seen += batch.share->global_num_tokens;
}

void Trainer::FinishStep() {
  const double most = arguments_.max_grad_norm;
  const bool snapshot = out_ != nullptr && SnapshotIsDue();
  // A bad step is either noticed before its update, or held back by guard_ until it is noticed.
  if (!reads_each_step_ && !snapshot) {
    const Tensor norm = guard_.ClipAndStep(optimizer_, most, accelerator_.LastLosses());
    unread_.push_back({window_, norm, guard_.last_scale()});
    if (std::ssize(unread_) >= kMostUnread) ReadStepResults();
  } else {
    if (reads_each_step_) {
      unread_.push_back(
          {window_, most > 0 ? ClipGradNorm(optimizer_, most) : GradNorm(optimizer_)});
    } else {
      const Tensor norm = guard_.Clip(optimizer_, most, accelerator_.LastLosses());
      unread_.push_back({window_, norm, guard_.last_scale()});
    }
    if (ReadStepResults() && snapshot) TakeSnapshot();
    optimizer_.Step();
  }
  scheduler_->Step();
  optimizer_.ZeroGrad();
  last_batch_ = window_.back();
  window_.clear();
  ++state_.global_step;
  state_.learning_rate = reads_each_step_ ? std::optional(optimizer_.used_lr()) : std::nullopt;
  place_ = loader_.StateDict();
  tokens_of_steps_ = state_.num_input_tokens_seen;
  if (state_.global_step == steps_before_ + 1) time_to_first_step_ = SecondsSince(process_start);
}

// Returns true before the first update. Later it returns true once enough time has passed since the
// last snapshot. A snapshot holds the values that have just given a finite loss and gradient.
bool Trainer::SnapshotIsDue() const {
  if (state_.global_step == steps_before_) return true;
  const Clock::duration since = Clock::now() - good_time_;
  return since >= kSnapshotShare * good_duration_ &&
         (reads_each_step_ || since >= kMinSnapshotInterval);
}

void Trainer::TakeSnapshot() {
  const Clock::time_point start = Clock::now();
  // A parameter may be bad although no loss depends on it so far.
  if (!ParametersAreFinite()) {
    SaveLastGoodModelAndThrow(
        {.step = state_.global_step, .what = "a parameter is not finite", .only_on_main = true});
  }
  const Tensor values = optimizer_.arena().values().To(Device{});
  const int problem = good_values_->Take(values.values<float>());
  if (problem != 0 && !std::exchange(warned_of_snapshot_, true)) {
    Call(&Callback::OnWarning,
         "warning: " + FileError(out_->path(), problem).message() +
             "; no copy of the last good model can be kept, so none is saved if training diverges");
  }
  good_step_ = state_.global_step + 1;
  good_time_ = Clock::now();
  good_duration_ = good_time_ - start;
}

void Trainer::AfterStep() {
  const int64_t step = state_.global_step;
  const bool logs_steps = arguments_.logging_strategy == "steps";
  if ((logs_steps && step % state_.logging_steps == 0) ||
      (step == 1 && arguments_.logging_first_step)) {
    control_.should_log = true;
  }
  if (arguments_.eval_strategy == "steps" && step % state_.eval_steps == 0 &&
      static_cast<double>(step) >= arguments_.eval_delay) {
    control_.should_evaluate = true;
  }
  if (keeps_checkpoints()) {
    FinishSaving(/*wait=*/false);
    StopIfSavingFailed();
    if (SaveIsDue()) control_.should_save = true;
  }
  Call(&Callback::OnStepEnd);
  state_.read_steps.clear();
  FollowControl();
}

void Trainer::AfterEpoch() {
  epoch_is_open_ = false;
  if (arguments_.logging_strategy == "epoch") control_.should_log = true;
  if (arguments_.eval_strategy == "epoch" && state_.epoch >= arguments_.eval_delay)
    control_.should_evaluate = true;
  if (arguments_.save_strategy == "epoch") control_.should_save = true;
  Call(&Callback::OnEpochEnd);
  FollowControl();
}

void Trainer::AgreeOnControl() {
  if (!agrees_on_control_) return;
  TrainerControl& c = control_;
  std::array<int64_t, 4> flags = {c.should_training_stop, c.should_log, c.should_evaluate,
                                  c.should_save};
  accelerator_.group().AllReduce(std::span(flags), ReduceOp::kMax);
  c = {.should_training_stop = flags[0] != 0,
       .should_log = flags[1] != 0,
       .should_evaluate = flags[2] != 0,
       .should_save = flags[3] != 0};
}

void Trainer::FollowControl() {
  AgreeOnControl();
  if (std::exchange(control_.should_log, false)) {
    LogStep();
    AgreeOnControl();
  }
  // Several ranks have to agree on the step after which they stop.
  interrupted_ = interrupted_ || accelerator_.stop_requested() ||
                 (!accelerator_.use_distributed() && Interrupted());
  if (interrupted_) return;
  if (std::exchange(control_.should_evaluate, false)) {
    is_evaluating_ = true;
    EvaluateNow();
    if (interrupted_) return;
    is_evaluating_ = false;
    AgreeOnControl();
  }
  if (std::exchange(control_.should_save, false) && saves()) {
    SaveNow();
    AgreeOnControl();
  }
}

}  // namespace lathe
