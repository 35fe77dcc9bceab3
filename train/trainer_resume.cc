// The part of the trainer that goes on from checkpoints.
#include <absl/status/status.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/train/checkpoint/checkpoint_files.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/checkpoint/resume_changes.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/parameters/trained_parameters.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

StateDict WithValues(const json& values) {
  StateDict state;
  state.values = values;
  return state;
}

// Returns true unless the checkpoint's model is known to be another one than that of the digest.
// An empty digest, or a manifest that can't be read, tells nothing.
bool MayHoldModel(const fs::path& checkpoint, const std::string& sha256) try {
  return sha256.empty() || ReadManifest(checkpoint.string()).files.at(kModelFile).sha256 == sha256;
} catch (const std::exception&) {
  return true;
}

// Returns where the best checkpoint lies now; "" if another training's lies there. The folder may
// have been moved or copied as a whole, and another training may have begun in its old place.
std::string PlaceOfBest(const std::string& stored, const FoundCheckpoint& resumed,
                        const std::string& sha256) {
  if (stored.empty()) return stored;
  const fs::path near = fs::path(resumed.path).parent_path() / fs::path(stored).filename();
  std::error_code code;
  for (const fs::path& place : {near, fs::path(stored)}) {
    if (fs::exists(place, code) && MayHoldModel(place, sha256)) return place.string();
  }
  return fs::exists(stored, code) ? "" : stored;
}

// Returns the commits of models from a Hub that the checkpoint's training began with. Older ones
// note none.
HubCommits HubCommitsOf(const std::string& checkpoint) try {
  HubCommits commits = ReadTrainerState(checkpoint + "/" + kStateFile)
                           .at("stateful_callbacks")
                           .at(kHubCommits)
                           .at("attributes")
                           .get<HubCommits>();
  std::erase_if(commits, [](const auto& entry) {
    return !IsModelName(entry.first) || !IsCommit(entry.second);
  });
  return commits;
} catch (const std::exception&) {
  return {};
}

}  // namespace

void Trainer::ReadParameters(const std::string& dir) {
  const SafetensorsReader reader(dir + "/" + kModelFile);
  for (const Parameter& parameter : model_.Parameters()) {
    Tensor tensor = parameter.tensor;
    reader.Read(parameter.name, tensor);
  }
}

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
  for (const auto& [setting, difference] : Differences(found->manifest.settings, Settings())) {
    if (!arguments_.resume_anyway) {
      throw InvalidArgument(found->path + ": " + difference,
                            HintAboutDifference(setting, found->manifest.settings,
                                                ReadBatchProcesses(accelerator_.num_processes()),
                                                {HubCommitsOf(found->path), inputs_.hub_commits}));
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
  choice = ParseJson(accelerator_.GatherObject(DumpJson(choice))[0]);
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
  for (std::string& note :
       ChangedComputeSetup(ComputeSetupIn(checkpoint.manifest), OwnComputeSetup()))
    notes_.push_back(std::move(note));
}

void Trainer::LoadCheckpoint(const FoundCheckpoint& checkpoint) {
  const std::string file = checkpoint.path + "/" + kStateFile;
  json saved = ReadTrainerState(file);
  StateDict own = OwnState(saved, file);
  ForgetBestByOtherMeasure(checkpoint.manifest, own, saved);
  constexpr char kOwner[] = "trainer";
  ReadParameters(checkpoint.path);
  const StateDict schedule = WithValues(own.Get<json>(kOwner, "scheduler"));
  scheduler_->LoadStateDict(schedule);
  optimizer_.LoadStateDict(ReadOptimizerState(checkpoint));
  if (arguments_.resume_anyway) TakeNewRates(checkpoint.manifest.settings, schedule);
  if (optimizer_.grad_scaler() != nullptr && own.values.contains("scaler"))
    optimizer_.grad_scaler()->LoadStateDict(WithValues(own.values["scaler"]));
  if (checkpoint.manifest.files.contains(kBestFile) && !saved.at("best_metric").is_null()) {
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
  const std::string best = state_.best_model_checkpoint;
  const std::string digest = own.values.contains("best_model_sha256")
                                 ? own.Get<std::string>(kOwner, "best_model_sha256")
                                 : "";
  state_.best_model_checkpoint = PlaceOfBest(best, checkpoint, digest);
  if (!best.empty() && state_.best_model_checkpoint.empty())
    notes_.push_back("warning: " + best + " with the best model is another training's now");
  if (own.values.contains("lost_best")) {
    const StateDict lost = WithValues(own.Get<json>(kOwner, "lost_best"));
    lost_best_ = BestModel{.metric = lost.Get<double>(kOwner, "metric"),
                           .step = lost.Get<int64_t>(kOwner, "step")};
  }
  ForgetBestOfAnotherStep();
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

void Trainer::ForgetBestByOtherMeasure(const CheckpointManifest& manifest, StateDict& own,
                                       json& saved) {
  best_by_ = own.values.value("best_by", json());
  if (inputs_.evaluation == nullptr) return;
  const NamedSettings& now = BestSettings();
  NamedSettings of_run;  // the measure of the training that has saved this, if evaluations decided
  std::ranges::copy_if(manifest.settings, std::back_inserter(of_run), [&](const auto& setting) {
    return std::ranges::count(now, setting.first, &NamedSettings::value_type::first) > 0;
  });
  // A schedule that follows the metric begins to compare anew.
  if (json& schedule = own.values["scheduler"];
      schedule.contains("best") && FirstDifference(of_run, now)) {
    schedule["best"] = nullptr;
    schedule["num_bad_epochs"] = 0;
  }
  // Without a metric nothing is compared. The best model stays for a later training.
  if (arguments_.metric_for_best_model.empty() || arguments_.eval_strategy == "no" ||
      saved.at("best_metric").is_null())
    return;
  NamedSettings then;
  for (const auto& [name, value] : best_by_.items()) {
    if (value.is_string()) then.emplace_back(name, value.get<std::string>());
  }
  // Older versions have told it by the settings alone.
  const std::optional<std::string> difference =
      FirstDifference(best_by_.is_null() ? of_run : then, now);
  if (!difference) return;
  notes_.push_back("the best model so far counts no more: " + *difference);
  for (const char* key : {"best_metric", "best_global_step", "best_model_checkpoint"})
    saved[key] = nullptr;
  for (const char* key : {"best_model_sha256", "lost_best"}) own.values.erase(key);
}

// Without load_best_model_at_end, the best step may have had no checkpoint. The place is that of an
// earlier best one then.
void Trainer::ForgetBestOfAnotherStep() {
  if (!arguments_.load_best_model_at_end || state_.best_model_checkpoint.empty()) return;
  try {
    const int64_t step = ReadManifest(state_.best_model_checkpoint).step;
    if (step == state_.best_global_step) return;
  } catch (const Error&) {
    return;  // the end tells what is wrong with it
  }
  notes_.push_back("warning: no checkpoint holds the best model so far, that of step " +
                   std::to_string(state_.best_global_step.value_or(0)));
  state_.best_model_checkpoint.clear();
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
