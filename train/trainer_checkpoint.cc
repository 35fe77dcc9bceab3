// The part of the trainer that saves checkpoints and goes on from them.
#include <absl/status/status.h>
#include <omp.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/core/version.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/checkpoint/resume_changes.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/checkpoint/shared_folder.h"
#include "lathe/train/parameters/trained_parameters.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kStateFile[] = "trainer_state.json";
// The best model so far, if it is not a checkpoint of its own.
constexpr char kBestFile[] = "best_model.safetensors";

StateDict WithValues(const json& values) {
  StateDict state;
  state.values = values;
  return state;
}

}  // namespace

void Trainer::CheckSharedFolder() {
  const ProcessEnvironment& job = accelerator_.environment();
  if (!keeps_checkpoints() || job.local_world_size == job.world_size) return;
  const std::string folder = out_ != nullptr ? out_->path() : arguments_.output_dir;
  const std::vector<int> without = RanksWithoutFolder(accelerator_, folder);
  if (without.empty()) return;
  const std::string problem = arguments_.output_dir + ": rank " + std::to_string(without.front()) +
                              " does not see the main process's output folder";
  const bool every_rank_writes = ShardsOptimizer(arguments_) && accelerator_.device().is_cpu();
  if (every_rank_writes && !arguments_.save_only_model) {
    throw UsageError(
        problem + ", into which each process writes its part of a checkpoint",
        "name a folder that all machines share, or set " + OptionName("save_strategy") + " no");
  }
  if (arguments_.load_best_model_at_end) {
    throw UsageError(problem + ", from which each process loads the best model",
                     "name a folder that all machines share, or leave out " +
                         OptionName("load_best_model_at_end"));
  }
  if (!arguments_.save_only_model)
    notes_.push_back(problem + "; copy a checkpoint to all machines before training goes on");
}

// --- saving ---

bool Trainer::SaveIsDue() const {
  const int64_t step = state_.global_step;
  if (arguments_.save_strategy == "steps" &&
      (step % state_.save_steps == 0 || step == state_.max_steps))
    return true;
  return arguments_.save_seconds > 0 && accelerator_.is_main_process() &&
         std::chrono::steady_clock::now() - saved_time_ >=
             std::chrono::duration<double>(arguments_.save_seconds);
}

const NamedSettings& Trainer::Settings() {
  if (settings_.empty()) {
    settings_ = SettingsThatMatter(
        arguments_, *inputs_.train, inputs_.evaluation.get(), model_, inputs_.tokenizer.get(),
        ReadBatchProcesses(accelerator_.num_processes()), state_.max_steps, inputs_.max_seq_length);
  }
  return settings_;
}

Machinery Trainer::OwnMachinery() const {
  return {.num_processes = accelerator_.num_processes(),
          .num_threads = omp_get_max_threads(),
          .device = accelerator_.device().is_cpu() ? "cpu" : "cuda"};
}

CheckpointSaver& Trainer::Saver() {
  if (!saver_) {
    std::string folder = out_ != nullptr ? out_->path() : arguments_.output_dir;
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    saver_.emplace(std::move(folder), &accelerator_.group(),
                   CopyMemory{.num_processes = accelerator_.environment().local_world_size});
    if (accelerator_.is_main_process()) {
      SweepDrafts(saver_->parent());
      if (run_ == 0) run_ = NextRun(saver_->parent());
    }
    // Another rank may have to save alone later, for the same training.
    run_ = std::stoll(accelerator_.GatherObject(std::to_string(run_))[0]);
  }
  return *saver_;
}

nlohmann::json Trainer::ResumeState() {
  json state = {{"loader", place_.values},
                {"scheduler", scheduler_->StateDict().values},
                {"loss_since_log", loss_since_log_},
                {"loss_total", loss_total_},
                {"logged_step", logged_step_},
                {"epoch_is_open", epoch_is_open_},
                {"should_evaluate", control_.should_evaluate || is_evaluating_},
                {"should_save", control_.should_save}};
  if (state_.loss) state["loss"] = *state_.loss;
  if (std::isfinite(state_.grad_norm)) state["grad_norm"] = state_.grad_norm;
  if (const GradScaler* scaler = accelerator_.scaler(); scaler != nullptr)
    state["scaler"] = scaler->StateDict().values;
  return state;
}

void Trainer::WriteCheckpointFiles(const std::string& dir) {
  model_.SaveConfig(dir);
  if (inputs_.tokenizer != nullptr) inputs_.tokenizer->SavePretrained(dir);
  if (best_values_.defined()) {
    std::vector<std::pair<std::string, Tensor>> best;
    for (const auto& [parameter, offset] : optimizer_.arena().entries()) {
      const Tensor values = best_values_.Slice(offset, offset + parameter.tensor.numel());
      best.emplace_back(parameter.name, values.Reshape(parameter.tensor.shape()));
    }
    WriteSafetensors(dir + "/" + kBestFile, best);
  }
  CollectCallbackStates();
  Call(&Callback::OnSave, dir);
  state_.stateful_callbacks[kOwnState] = {{"args", json::object()}, {"attributes", ResumeState()}};
  const std::string text = state_.ToText();
  state_.stateful_callbacks.erase(kOwnState);
  WriteFileAtomically(dir + "/" + kStateFile, text);
}

CheckpointJob Trainer::MakeCheckpointJob(CheckpointSaver& saver, bool writes_model) {
  CheckpointJob job{.name = CheckpointName(state_.global_step),
                    .with_optimizer = !arguments_.save_only_model,
                    .every_rank_writes = optimizer_.shards() != nullptr,
                    .write_files = [this](const std::string& dir) { WriteCheckpointFiles(dir); },
                    .on_saved = {}};
  if (job.with_optimizer) job.optimizer = optimizer_.StateDict();
  if (!writes_model) return job;
  for (const Parameter& parameter : model_.Parameters())
    job.model.Add(parameter.name, parameter.tensor);
  job.manifest = {.step = state_.global_step,
                  .run = run_,
                  .world_size = accelerator_.num_processes(),
                  .resumable = !arguments_.save_only_model,
                  .settings = Settings(),
                  .about = {{"lathe_version", kVersion},
                            {"epoch", state_.epoch},
                            {"seed", arguments_.seed},
                            {kJobKey, accelerator_.environment().job},
                            {kDeviceKey, OwnMachinery().device},
                            {kThreadsKey, OwnMachinery().num_threads}}};
  if (!launcher_.empty()) job.manifest.about[kLauncherKey] = launcher_;
  if (arguments_.save_total_limit) {
    job.on_saved = [parent = saver.parent(), run = run_, step = state_.global_step,
                    limit = *arguments_.save_total_limit, best = state_.best_model_checkpoint] {
      // Names are compared, because the folder may be written in another way after a resume.
      RotateCheckpoints(parent, run, step, limit, [&](const std::string& path) {
        return fs::path(path).filename() == fs::path(best).filename();
      });
    };
  }
  return job;
}

void Trainer::SaveCheckpoint(bool beside) {
  ReadStepResults();
  CheckLastUpdate();
  model_.Train();
  accelerator_.SetPhase("saving");
  FinishSaving(/*wait=*/true);
  CheckpointSaver& saver = Saver();
  const std::string path = saver.parent() + "/" + CheckpointName(state_.global_step);
  if (!SavesTheBest()) best_before_.checkpoint = state_.best_model_checkpoint;
  if (state_.best_global_step == state_.global_step) state_.best_model_checkpoint = path;
  begun_ = SavedCheckpoint{.path = path, .step = state_.global_step, .error = {}};
  saver.Start(MakeCheckpointJob(saver, accelerator_.is_main_process()), beside);
  saved_time_ = std::chrono::steady_clock::now();
  accelerator_.SetPhase("training");
}

void Trainer::FinishSaving(bool wait) {
  while (saver_ && saver_->active()) {
    const std::optional<SavedCheckpoint> saved = saver_->Poll();
    if (!saved && !wait) return;
    if (!saved) {
      accelerator_.group().CheckPeers();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    if (!accelerator_.is_main_process()) return;
    if (!saved->error) {
      if (!arguments_.save_only_model) last_checkpoint_ = saved->path;
      Call(&Callback::OnCheckpoint, saved->path);
      return;
    }
    ForgetUnsavedBest(*saved);
    if (arguments_.save_failure == "stop" && keeps_checkpoints()) {
      save_error_ = Error(absl::StatusCode::kInternal,
                          "no checkpoint was saved after step " + std::to_string(saved->step) +
                              ": " + saved->error->message(),
                          saved->error->hint());
      return;
    }
    // Somebody may have removed it meanwhile.
    std::error_code code;
    const bool has_last =
        !last_checkpoint_.empty() && fs::exists(fs::path(last_checkpoint_) / kManifestFile, code);
    Call(&Callback::OnWarning, "warning: no checkpoint was saved after step " +
                                   std::to_string(saved->step) + ": " + saved->error->message() +
                                   (has_last ? "; the newest one is " + last_checkpoint_ : ""));
  }
}

void Trainer::StopIfSavingFailed() {
  if (arguments_.save_failure != "stop" || !keeps_checkpoints()) return;
  if (save_error_) accelerator_.SetTrigger();
  if (!accelerator_.CheckTrigger()) return;
  if (!save_error_) LeaveReportToMain();
  throw *save_error_;
}

void Trainer::SaveInterrupted() {
  if (!saves() || state_.global_step == steps_before_) return;
  const InterruptShield shield;
  SaveCheckpoint(/*beside=*/false);
  FinishSaving(/*wait=*/true);
  accelerator_.WaitWithoutTimeout();  // a disk may be slow
}

std::string Trainer::SaveCheckpointAlone(bool complete) {
  if (!complete || optimizer_.shards() != nullptr || arguments_.save_only_model) {
    // The lost rank has taken its part of the moments with it.
    if (const auto newest = NewestOwnCheckpoint())
      return "; training can go on from " + newest->path;
    return "; training can't go on from it: " +
           (arguments_.save_only_model
                ? OptionName("save_only_model") + " leaves out what that needs"
                : OptionName("save_steps") + " saves checkpoints next time");
  }
  // This rank writes alone, so what it has begun to write comes to its end.
  while (saver_ && saver_->active() && !saver_->Poll())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  state_.num_input_tokens_seen = tokens_of_steps_;
  CheckpointSaver saver(out_->path(), nullptr);
  if (run_ == 0) run_ = NextRun(saver.parent());
  saver.Start(MakeCheckpointJob(saver, /*writes_model=*/true), /*beside=*/false);
  const std::optional<SavedCheckpoint> saved = saver.Poll();
  if (saved->error) return "; no checkpoint was saved: " + saved->error->message();
  return "; training can go on from " + saved->path;
}

void Trainer::ReadParameters(const std::string& dir) {
  const SafetensorsReader reader(dir + "/model.safetensors");
  for (const Parameter& parameter : model_.Parameters()) {
    Tensor tensor = parameter.tensor;
    reader.Read(parameter.name, tensor);
  }
}

// --- resuming ---

std::string Trainer::MarkOutput() {
  try {
    if (out_ != nullptr) MarkFolder(out_->path());
    return "";
  } catch (const Error& e) {
    return "warning: " + e.message() +
           "; if the job is lost before its first checkpoint, it can't start again by itself";
  }
}

std::optional<FoundCheckpoint> Trainer::FindCheckpoint() {
  const std::string& wish = arguments_.resume_from_checkpoint;
  std::optional<FoundCheckpoint> found;
  CheckpointSearch search;
  const std::string folder = out_ == nullptr ? "" : out_->path();
  if (!folder.empty()) search = FindNewestCheckpoint(folder);
  // A job that was started again goes on from its own checkpoint, whatever it began with.
  CheckpointSearch own;
  if (ReadRestarts() > 0 && search.newest) {
    const auto is_own = [identity = OwnIdentity()](const CheckpointManifest& manifest) {
      return IsSameJob(IdentityIn(manifest.about), identity);
    };
    own = is_own(search.newest->manifest) ? search : FindNewestCheckpoint(folder, is_own);
  }
  if (own.newest || wish == "true") {
    const CheckpointSearch& taken = own.newest ? own : search;
    for (const std::string& reason : taken.left_out) notes_.push_back("left out " + reason);
    found = taken.newest;
  } else if (!wish.empty()) {
    found = OpenCheckpoint(wish);
  }
  if (!found) {
    if (wish.empty()) {  // the job was lost before its first checkpoint
      for (const std::string& reason : search.left_out) notes_.push_back("left out " + reason);
      notes_.push_back(
          "the job was started again, and begins at the first step, as it has no whole checkpoint");
      return found;
    }
    if (folder.empty()) {
      throw InvalidArgument("resume_from_checkpoint true needs output_dir",
                            "name the folder that holds the checkpoints");
    }
    std::string reasons;
    for (const std::string& reason : search.left_out) reasons += "; " + reason;
    throw NotFound(folder + ": has no checkpoint to go on from" + reasons,
                   "leave out " + OptionName("resume_from_checkpoint") +
                       " to begin anew, or name another folder");
  }
  // Another branch of the training, or one from another folder, is a training of its own.
  const bool goes_on = search.newest && fs::equivalent(found->path, search.newest->path);
  run_ = goes_on ? found->manifest.run : folder.empty() ? 1 : NextRun(folder);
  for (const std::string& difference : Differences(found->manifest.settings, Settings())) {
    if (!arguments_.resume_anyway) {
      throw InvalidArgument(found->path + ": " + difference,
                            HintAboutDifference(difference, found->manifest.settings,
                                                ReadBatchProcesses(accelerator_.num_processes())));
    }
    notes_.push_back("resumed anyway: " + difference);
  }
  return found;
}

void Trainer::Resume() {
  // The main process chooses for all. If it can't, all of them know why.
  json choice = json::object();
  std::string path;  // its name may hold bytes that JSON can't
  if (accelerator_.is_main_process()) {
    try {
      if (const auto found = FindCheckpoint()) path = found->path;
      if (!path.empty()) choice = {{"run", run_}};
    } catch (const Error& e) {
      // A file that can't be read now may be readable after a restart.
      const bool is_refusal = e.code() != absl::StatusCode::kUnavailable &&
                              e.code() != absl::StatusCode::kInternal &&
                              e.code() != absl::StatusCode::kResourceExhausted;
      choice = {{"error", e.message()}, {"hint", e.hint()}, {"is_refusal", is_refusal}};
    }
  }
  accelerator_.WaitWithoutTimeout();  // it may read many gigabytes
  choice = json::parse(
      accelerator_.GatherObject(choice.dump(-1, ' ', false, json::error_handler_t::replace))[0]);
  if (choice.contains("error")) {
    const std::string message = choice.at("error"), hint = choice.at("hint");
    if (choice.at("is_refusal").get<bool>()) throw UsageError(message, hint);
    throw InvalidArgument(message, hint);
  }
  if (!choice.contains("run")) return;
  path = accelerator_.GatherObject(path)[0];
  run_ = choice.at("run").get<int64_t>();
  FoundCheckpoint checkpoint{path, ReadManifest(path)};
  try {
    LoadCheckpoint(checkpoint);
  } catch (const Error& e) {
    // A file that can't be read now may be readable after a restart.
    if (e.code() != absl::StatusCode::kInvalidArgument && e.code() != absl::StatusCode::kDataLoss)
      throw;
    throw MisfitError(path, e, FirstDifference(checkpoint.manifest.settings, Settings()));
  }
  begun_ = SavedCheckpoint{.path = path, .step = state_.global_step, .error = {}};
  best_before_ = {.metric = state_.best_metric,
                  .step = state_.best_global_step,
                  .checkpoint = state_.best_model_checkpoint};
  for (std::string& note : ChangedMachinery(MachineryIn(checkpoint.manifest), OwnMachinery()))
    notes_.push_back(std::move(note));
}

void Trainer::LoadCheckpoint(const FoundCheckpoint& checkpoint) {
  const std::string file = checkpoint.path + "/" + kStateFile;
  const json saved = ReadTrainerState(file);
  const StateDict own = OwnState(saved, file);
  constexpr char kOwner[] = "trainer";
  ReadParameters(checkpoint.path);
  const StateDict schedule = WithValues(own.Get<json>(kOwner, "scheduler"));
  scheduler_->LoadStateDict(schedule);
  optimizer_.LoadStateDict(ReadOptimizerState(checkpoint));
  if (arguments_.resume_anyway) TakeNewRates(checkpoint.manifest.settings, schedule);
  if (optimizer_.grad_scaler() != nullptr && own.values.contains("scaler"))
    optimizer_.grad_scaler()->LoadStateDict(WithValues(own.values["scaler"]));
  if (checkpoint.manifest.files.contains(kBestFile)) {
    best_values_ = optimizer_.arena().values().Clone();
    ReadTrained(checkpoint.path + "/" + kBestFile, best_values_);
  }
  place_ = WithValues(own.Get<json>(kOwner, "loader"));
  if (arguments_.resume_anyway) {
    FittedPlace fitted = FitPlace(place_, loader_);
    place_ = std::move(fitted.state);
    if (!fitted.note.empty()) notes_.push_back(std::move(fitted.note));
  }
  loader_.LoadStateDict(place_);
  state_.LoadJson(saved, file);
  LoadCallbackStates(saved, file);
  if (std::error_code code; !fs::exists(state_.best_model_checkpoint, code)) {
    // The folder may have moved as a whole.
    const fs::path best =
        fs::path(checkpoint.path).parent_path() / fs::path(state_.best_model_checkpoint).filename();
    if (!state_.best_model_checkpoint.empty() && fs::exists(best, code))
      state_.best_model_checkpoint = best.string();
  }
  loss_since_log_ = own.Get<double>(kOwner, "loss_since_log");
  loss_total_ = own.Get<double>(kOwner, "loss_total");
  logged_step_ = own.Get<int64_t>(kOwner, "logged_step");
  if (own.values.contains("loss")) state_.loss = own.Get<double>(kOwner, "loss");
  if (own.values.contains("grad_norm")) state_.grad_norm = own.Get<double>(kOwner, "grad_norm");
  epoch_is_open_ = own.Get<bool>(kOwner, "epoch_is_open");
  control_.should_evaluate = own.Get<bool>(kOwner, "should_evaluate");
  control_.should_save = own.Get<bool>(kOwner, "should_save");
  steps_read_ = steps_before_ = state_.global_step;
  tokens_before_ = tokens_of_steps_ = state_.num_input_tokens_seen;
  resumed_from_ = last_checkpoint_ = checkpoint.path;
}

void Trainer::TakeNewRates(const NamedSettings& then, const StateDict& schedule) {
  if (arguments_.lr_scheduler_type != "reduce_lr_on_plateau") {
    scheduler_->LoadStateDict(schedule);  // sets the rates of its step
    return;
  }
  TrainingArguments before = arguments_;
  before.learning_rate = NumberIn(then, "learning_rate", before.learning_rate);
  before.head_learning_rate = NumberIn(then, "head_learning_rate", 0);
  before.layerwise_lr_decay = NumberIn(then, "layerwise_lr_decay", 1);
  ScaleRates(optimizer_, model_, before);
}

void Trainer::FinishResumedStep() {
  FollowControl();
  const bool at_end =
      place_.Get<int64_t>("trainer", "batches") == 0 || state_.global_step == state_.max_steps;
  if (epoch_is_open_ && at_end && !ends()) AfterEpoch();
}

}  // namespace lathe
