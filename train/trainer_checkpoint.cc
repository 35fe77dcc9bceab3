// The part of the trainer that saves checkpoints.
#include <absl/status/status.h>
#include <omp.h>

#include <algorithm>
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
#include "lathe/train/checkpoint/checkpoint_files.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/checkpoint/shared_folder.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Returns the SHA-256 of the checkpoint's model, as its manifest has it; "" if it can't be read.
std::string DigestOfModel(const std::string& checkpoint) try {
  return ReadManifest(checkpoint).files.at(kModelFile).sha256;
} catch (const std::exception&) {
  return "";
}

}  // namespace

void Trainer::CheckSharedFolder() {
  const ProcessEnvironment& job = accelerator_.environment();
  if (!keeps_checkpoints() || job.local_world_size == job.world_size) return;
  const std::string folder = out_ != nullptr ? out_->path() : arguments_.output_dir;
  const std::vector<int> without = RanksWithoutFolder(accelerator_, folder);
  sees_main_folder_ = std::ranges::find(without, accelerator_.process_index()) == without.end();
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

const NamedSettings& Trainer::BestSettings() {
  if (best_settings_.empty())
    best_settings_ = SettingsOfBest(arguments_, *inputs_.evaluation, model_);
  return best_settings_;
}

ComputeSetup Trainer::OwnComputeSetup() const {
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
  const std::string& best = state_.best_model_checkpoint;
  // If this checkpoint is the best one, its manifest isn't written yet.
  if (!best.empty() && state_.best_global_step != state_.global_step)
    state["best_model_sha256"] = DigestOfModel(best);
  if (state_.best_metric && !best_by_.is_null()) {
    state["best_by"] = best_by_;
  } else if (state_.best_metric && inputs_.evaluation != nullptr) {
    state["best_by"] = json::object();
    for (const auto& [name, value] : BestSettings()) state["best_by"][name] = value;
  }
  if (lost_best_)
    state["lost_best"] = {{"metric", *lost_best_->metric}, {"step", *lost_best_->step}};
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
                            {kDeviceKey, OwnComputeSetup().device},
                            {kThreadsKey, OwnComputeSetup().num_threads}}};
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
  if (state_.best_global_step == state_.global_step)
    state_.best_model_checkpoint = begun_best_ = path;
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
    return NoteSaved(*saved);
  }
}

void Trainer::NoteSaved(const SavedCheckpoint& saved) {
  if (!saved.error) {
    if (!arguments_.save_only_model) last_checkpoint_ = saved.path;
    Call(&Callback::OnCheckpoint, saved.path);
    return;
  }
  ForgetUnsavedBest(saved);
  const std::string problem = "no checkpoint was saved after step " + std::to_string(saved.step) +
                              ": " + saved.error->message();
  if (arguments_.save_failure == "stop" && keeps_checkpoints()) {
    save_error_ = Error(absl::StatusCode::kInternal, problem, saved.error->hint());
    return;
  }
  // Somebody may have removed it meanwhile.
  std::error_code code;
  const bool has_last =
      !last_checkpoint_.empty() && fs::exists(fs::path(last_checkpoint_) / kManifestFile, code);
  Call(&Callback::OnWarning,
       "warning: " + problem + (has_last ? "; the newest one is " + last_checkpoint_ : ""));
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
  constexpr char kGoOn[] = "; training can go on from ";
  const bool can_be_saved =
      complete && optimizer_.shards() == nullptr && !arguments_.save_only_model;
  if (can_be_saved) {
    WaitForOwnSave();
    // All is saved if the loss came after the last step.
    if (begun_ && begun_->step == state_.global_step && IsOwnCheckpoint(begun_->path))
      return kGoOn + begun_->path;
  }
  const std::string earlier = save_error_ ? "; " + save_error_->message() : "";
  const bool best_is_unsaved = BestIsUnsaved();
  if (!can_be_saved || best_is_unsaved) {
    // If the main process has not finished the best checkpoint, an older one leads to that model
    // again, and a new one would not.
    if (const auto newest = NewestOwnCheckpoint()) return earlier + kGoOn + newest->path;
  }
  if (!can_be_saved) {
    // The lost rank has taken its part of the moments with it.
    return earlier + "; training can't go on from it: " +
           (arguments_.save_only_model
                ? OptionName("save_only_model") + " leaves out what that needs"
            : keeps_checkpoints() ? "no checkpoint was saved before"
                                  : OptionName("save_steps") + " saves checkpoints next time");
  }
  state_.num_input_tokens_seen = tokens_of_steps_;
  CheckpointSaver saver(out_->path(), nullptr);
  if (run_ == 0) run_ = NextRun(saver.parent());
  const std::string path = saver.parent() + "/" + CheckpointName(state_.global_step);
  if (best_is_unsaved)
    ForgetUnsavedBest({.path = begun_best_, .step = *state_.best_global_step, .error = {}});
  if (state_.best_global_step == state_.global_step) state_.best_model_checkpoint = path;
  saver.Start(MakeCheckpointJob(saver, /*writes_model=*/true), /*beside=*/false);
  const std::optional<SavedCheckpoint> saved = saver.Poll();
  if (saved->error) return earlier + "; no checkpoint was saved: " + saved->error->message();
  return earlier + kGoOn + saved->path;
}

void Trainer::WaitForOwnSave() {
  while (saver_ && saver_->active()) {
    const std::optional<SavedCheckpoint> saved = saver_->Poll();
    if (!saved) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (saved && accelerator_.is_main_process()) NoteSaved(*saved);
  }
}

}  // namespace lathe
