// Trainer: a training loop with the rules of Transformers' Trainer. Steps and warm-up are counted
// in optimizer steps. A step clips the gradients, updates the parameters, advances the schedule and
// zeroes the gradients. The logged rate is the one that was used. A step's loss is the mean over
// the samples of its accumulation window, so that a short last window is exact, too.
//
//   TrainingArguments arguments;
//   arguments.output_dir = "model";     // without it, nothing is written
//   Accelerator accelerator(AcceleratorOptionsOf(arguments));
//   Trainer trainer(arguments, accelerator, {.model = model, .train = train_set},
//                   {std::make_shared<ProgressCallback>()});
//   trainer.Train();                    // trains and saves the model
//
// The Trainer prints nothing. Callbacks show its progress and add files to the saved model
// (train/callback.h, train/callbacks/). examples/trainer.cc is a whole program.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/data/datasets/dataset.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/train/callback.h"
#include "lathe/train/checkpoint/checkpoint_saver.h"
#include "lathe/train/checkpoint/folder_claim.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/frozen_encoder.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/snapshot.h"
#include "lathe/train/support/training_arguments.h"
#include "lathe/train/trainer_state.h"

namespace lathe {

// What a Trainer trains, and what it saves beside the model.
struct TrainerInputs {
  std::shared_ptr<SequenceClassifier> model = nullptr;
  std::shared_ptr<const TokenizedDataset> train = nullptr;       // with labels
  std::shared_ptr<const TokenizedDataset> evaluation = nullptr;  // with labels; null: none
  std::string train_name = "the training data";                  // for errors, such as its file
  // The tokenizer to save beside the model; null for none. In a job of several ranks it may be
  // null on all but the main process. If another rank has to save, it calls `load_tokenizer`.
  std::shared_ptr<Tokenizer> tokenizer = nullptr;
  std::function<std::shared_ptr<Tokenizer>()> load_tokenizer = {};
  // arguments.output_dir, if it is open already on the main process. If it is null, the Trainer
  // opens the folder itself, unless arguments.output_dir is empty.
  OutputDir* out = nullptr;
  // The option max_seq_length that the data were cut with (0 for auto), if a resume is to name it.
  std::optional<int64_t> max_seq_length = {};
  // The commits of the models from a Hub that this training begins with, by their names.
  // trainer_state.json keeps them. If such a model has changed when a training goes on, the hint
  // names its earlier commit.
  std::map<std::string, std::string> hub_commits = {};
};

// Returns the options of an Accelerator for these arguments.
AcceleratorOptions AcceleratorOptionsOf(const TrainingArguments& arguments);

class Trainer {
 public:
  // `accelerator` and `inputs.out` must outlive the trainer. The arguments do_train, do_eval,
  // do_predict, num_threads and log_level are for programs; the trainer ignores them. Throws for
  // arguments that are out of range, or don't fit each other, the data or the accelerator. Messages
  // name their fields. With several ranks, all make their Trainers together. The main process
  // claims the output folder (train/checkpoint/folder_claim.h) for as long as its Trainer exists.
  // Throws UsageError if another process has claimed it.
  Trainer(const TrainingArguments& arguments, Accelerator& accelerator, TrainerInputs inputs,
          std::vector<std::shared_ptr<Callback>> callbacks = {});

  // Describes the steps to come, for people.
  std::string Plan() const;
  // Trains and saves; call it once. If a loss or a gradient is not finite, saves the model as it
  // was before that step and throws. The error names the step and the first bad parameter. Only the
  // main process throws it; the others wait for the end of the main process and throw
  // ReportedElsewhere (train/support/run_errors.h). If other ranks are lost, the ranks that are
  // left save the model after the last step and throw. Without an output folder nothing is saved.
  void Train();
  // If a number in this evaluation of the trained model is not finite, saves the last good model
  // and throws, as Train does. `data` names the evaluation in the error: "evaluation", "test".
  void CheckFinite(const Evaluation& evaluation, const std::string& data);

  // A signal has ended the training early, on this process or on another one. The process must have
  // called InstallInterruptHandler (train/support/interrupt.h).
  bool interrupted() const { return interrupted_; }
  const TrainerState& state() const { return state_; }
  // The checkpoint from which this training goes on; empty if it begins anew.
  const std::string& resumed_from() const { return resumed_from_; }
  // The checkpoint of the last step that was saved and is on the disk; empty if there is none.
  const std::string& last_checkpoint() const { return last_checkpoint_; }
  // For people: checkpoints that were left out, and what may differ after a resume.
  const std::vector<std::string>& notes() const { return notes_; }
  // For an evaluation of the trained model on TrainerInputs::evaluation; may be null.
  KeptEncodings* encodings() { return encodings_ ? &*encodings_ : nullptr; }
  // Returns train_loss, train_runtime and so on; valid after Train.
  const nlohmann::json& metrics() const { return metrics_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Callbacks (trainer_callbacks.cc).
  void CheckCallbacks();
  void CheckCallbackStates() const;
  // Puts the states of the callbacks into state_, and gives them those of a checkpoint.
  void CollectCallbackStates();
  void LoadCallbackStates(const nlohmann::json& saved, const std::string& file);

  // The loop (trainer.cc).
  void CheckMetricName() const;
  // Gives the loader the outputs of a frozen encoder, if they are the same in all epochs.
  void EncodeFrozen();
  void TrainEpoch();
  void Accumulate(const Batch& batch);
  void FinishStep();
  bool SnapshotIsDue() const;
  void TakeSnapshot();
  // Calls an event of all callbacks.
  template <typename Event, typename... Values>
  void Call(Event event, const Values&... values) {
    for (const auto& callback : callbacks_) {
      (callback.get()->*event)(arguments_, state_, control_, values...);
    }
    if (!control_.warnings.empty()) PassOnWarnings();
  }
  // Passes the warnings in the control to all callbacks.
  void PassOnWarnings();
  void AfterStep();
  void AfterEpoch();
  // Makes the control the same on all ranks.
  void AgreeOnControl();
  // Logs, evaluates and saves as the control asks.
  void FollowControl();
  bool saves() const { return out_ != nullptr || !arguments_.output_dir.empty(); }
  bool HasGoodValues() const { return good_values_ && good_values_->taken(); }
  bool ends() const { return interrupted_ || control_.should_training_stop; }

  // Reading results and writing files (trainer_report.cc).
  //
  // Reads the losses and norms of the steps since the last call. Returns false if the last step's
  // gradients in float16 have overflowed, so its update is skipped.
  bool ReadStepResults();
  void WarnOfSmallScale(double scale);
  void Log(nlohmann::json entry);
  void LogStep();
  void EvaluateNow();
  // Saves a model that training goes on with.
  void SaveNow();
  // Counts the time since `begin` as that of an evaluation or a save.
  void CountBesideSteps(Clock::time_point begin);

  // Checkpoints (trainer_checkpoint.cc).
  //
  // With ranks on several machines, throws or notes it if some don't see the checkpoints.
  void CheckSharedFolder();
  bool keeps_checkpoints() const { return arguments_.save_strategy != "no" && saves(); }
  // Returns true if a checkpoint is due after this step, or because of the time.
  bool SaveIsDue() const;
  // Begins to write a checkpoint of the last step; `beside`: on a thread, while training goes on.
  void SaveCheckpoint(bool beside);
  CheckpointJob MakeCheckpointJob(CheckpointSaver& saver, bool writes_model);
  void WriteCheckpointFiles(const std::string& dir);
  // Takes the result of a checkpoint that was written. `wait`: waits until there is one.
  void FinishSaving(bool wait);
  // Waits until this rank has written what it has begun, without the others.
  void WaitForOwnSave();
  // On the main process: tells the callbacks how a save has ended, and forgets a best model that
  // was not saved.
  void NoteSaved(const SavedCheckpoint& saved);
  // If save_failure is "stop" and a checkpoint has failed, throws on all ranks.
  void StopIfSavingFailed();
  // Saves where the training stops before its end, and waits until that is on the disk.
  void SaveInterrupted();
  // Returns the saver. All ranks call it together.
  CheckpointSaver& Saver();
  const NamedSettings& Settings();
  // Returns what decides which model is the best (SettingsOfBest). Needs evaluation data.
  const NamedSettings& BestSettings();
  ComputeSetup OwnComputeSetup() const;
  nlohmann::json ResumeState();
  // Marks the output folder as this job's, so that it may go on there after a restart. Returns a
  // warning if that fails, else "".
  std::string MarkOutput();
  // Gives the parameters the values in the folder's model.safetensors.
  void ReadParameters(const std::string& dir);
  // Goes on from the checkpoint that the arguments name. A job that its launcher has started again
  // goes on from its own newest one.
  void Resume();
  std::optional<FoundCheckpoint> FindCheckpoint();
  void LoadCheckpoint(const FoundCheckpoint& checkpoint);
  // Notes it if the best checkpoint of before is not that of the best step, and forgets it.
  void ForgetBestOfAnotherStep();
  // If the best model of before was found by another metric or with other data, and this training
  // compares models, notes that and removes it from a checkpoint's state. So no later model is
  // compared with it.
  void ForgetBestByOtherMeasure(const CheckpointManifest& manifest, StateDict& own,
                                nlohmann::json& saved);
  // Sets the rates by these arguments, after the optimizer's state has brought those of `then`.
  void TakeNewRates(const NamedSettings& then, const StateDict& schedule);
  // Does what was still to be done after the step of the checkpoint.
  void FinishResumedStep();
  // Saves a checkpoint without the ranks that are lost, if this rank has the optimizer's whole
  // state. Returns words for a message that say from where the training can go on, or that it
  // can't.
  std::string SaveCheckpointAlone(bool complete);

  // The best model (trainer_best_model.cc).
  //
  // Notes an evaluation's metric. If it is the best so far, asks for a checkpoint or keeps a copy,
  // where load_best_model_at_end or save_strategy need one.
  void UpdateBest(double metric);
  bool IsBetter(double metric, const std::optional<double>& than) const;
  // Returns true if each model that is the best so far is saved as a checkpoint.
  bool SavesTheBest() const;
  // Notes what is the best model until now, before another one takes its place.
  void NoteBestBefore();
  // Goes back to the best model of before if the checkpoint of the present one has failed. Only the
  // main process knows of a failure.
  void ForgetUnsavedBest(const SavedCheckpoint& failed);
  // If saves have failed, tells all ranks which model is the best that is left. All call it.
  void AgreeOnBest();
  // Warns if a model was better than the one that is loaded at the end, and is lost.
  void WarnOfLostBest();
  // Warns if there is a best metric, but no checkpoint with its model.
  void WarnOfMissingBest();
  // Returns true if the main process has begun the best checkpoint at an earlier step, and it is
  // not there. Call it if the main process is lost or has nothing to write.
  bool BestIsUnsaved() const;
  // Returns true if a model that could not be saved was better than the best one that is left.
  bool BestIsLost() const;
  // Gives the model the values of the best checkpoint, or of the copy in memory. If the checkpoint
  // is gone or damaged, warns and leaves the model as it is after the last step.
  void LoadBestModel();
  // Reads the values of the arena from the model in the folder into a new tensor on the host. The
  // main process verifies the file first. Returns "" or what is wrong.
  std::string ReadBest(const std::string& dir, Tensor& values);
  // Reads what is trained from a file into `values`, which has the layout of the arena.
  void ReadTrained(const std::string& file, const Tensor& values) const;

  // The last good model, and what is saved (trainer_report.cc).
  //
  struct BadNumber {
    int64_t step;
    std::string what;           // such as "the loss is nan"
    bool model_is_bad = true;   // the parameters as they are now gave the number
    bool only_on_main = false;  // the other ranks have not seen it
  };
  // Restores and saves the last good model if there is one, and throws. All ranks call it together;
  // with bad.only_on_main, only the main process does.
  [[noreturn]] void SaveLastGoodModelAndThrow(const BadNumber& bad);
  // On ranks other than the main process: ends silently, once the main process has ended.
  [[noreturn]] void LeaveReportToMain();
  std::string FindNotFinite();
  std::string FindNotFiniteOnAnyRank();
  // Checks the result of the last update, which no loss has shown yet.
  void CheckLastUpdate();
  bool ParametersAreFinite() const;
  void Save();
  nlohmann::json TrainMetrics(double seconds) const;
  // For a resume after the last step. Returns what the training itself had written, with its times.
  // Returns `metrics` if there is nothing of the kind in the output folder.
  nlohmann::json EarlierMetrics(const nlohmann::json& metrics) const;

  // Saving when other ranks are lost (trainer_lost_ranks.cc).
  [[noreturn]] void SaveWithoutTheOthers(const Error& lost);
  std::optional<std::string> GoBackIfNeeded(const Error& lost);
  void RestoreSnapshot();
  // Returns true if this training has written the checkpoint, or has gone on from it.
  bool IsOwnCheckpoint(const std::string& path) const;
  // Returns the newest whole checkpoint that this training has written, or else the one that it has
  // gone on from. Nullopt if there is none.
  std::optional<FoundCheckpoint> NewestOwnCheckpoint() const;

  TrainingArguments arguments_;
  Accelerator& accelerator_;
  TrainerInputs inputs_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  bool agrees_on_control_ = false;    // several ranks, and callbacks that change the control
  std::optional<OutputDir> own_out_;  // if inputs_.out is null
  OutputDir* out_;                    // null except on the main process
  std::optional<FolderClaim> claim_;  // this process's claim to out_
  SequenceClassifier& model_;
  TextLoader loader_;
  std::unique_ptr<Optimizer> own_optimizer_;
  Optimizer& optimizer_;
  std::unique_ptr<Scheduler> scheduler_;
  std::string metric_name_;  // the metric that decides which model is best, such as "eval_loss"
  bool greater_is_better_;
  int64_t steps_per_epoch_ = 0;
  TrainerState state_;
  TrainerControl control_;

  std::vector<Batch> window_;  // the batches of the present step
  std::optional<Batch> last_batch_;
  // A step whose loss and norm have not been read yet. On the host, and with several ranks,
  // this is at most the present step. On a single GPU, reading waits for the device. So it is done
  // only now and then, and more steps may be unread. `guard_` holds back the updates after a bad
  // step.
  struct UnreadStep {
    std::vector<Batch> window;
    Tensor grad_norm;
    Tensor scale = {};  // the loss scale of its gradients; undefined if reads_each_step_
  };
  std::vector<UnreadStep> unread_;
  bool reads_each_step_;
  StepGuard guard_;
  double loss_since_log_ = 0, loss_total_ = 0;
  int64_t logged_step_ = 0, steps_read_ = 0;
  int64_t samples_seen_ = 0;
  double time_to_first_step_ = 0;
  // The last values that are known to have given a finite loss and gradient. Only a process with an
  // output folder keeps them.
  std::optional<Snapshot> good_values_;
  int64_t good_step_ = 0;
  bool warned_of_snapshot_ = false, warned_of_scale_ = false;
  Clock::time_point good_time_;
  Clock::duration good_duration_{};         // how long it took to copy them
  std::optional<KeptEncodings> encodings_;  // of the evaluations, if parameters are frozen
  bool noted_encodings_ = false;
  Tensor best_values_;  // the arena's values when the metric was best, unless a checkpoint has them
  bool interrupted_ = false;

  std::optional<CheckpointSaver> saver_;
  NamedSettings settings_;       // see SettingsThatMatter; empty until they are needed
  NamedSettings best_settings_;  // see BestSettings; empty until they are needed
  // The BestSettings of the training that has found the best model, if that was before the resume.
  nlohmann::json best_by_;
  // The number of this training in the output folder, on all ranks. 0: not known yet.
  int64_t run_ = 0;
  // The main process's launcher, on all ranks (JobIdentity::launcher). Whichever rank saves, the
  // main process knows the checkpoint again after a restart.
  std::string launcher_;
  std::string resumed_from_, last_checkpoint_;
  // The checkpoint that was begun last, or the one of the resume. It may not be whole yet. The main
  // process forgets it if it fails.
  std::optional<SavedCheckpoint> begun_;
  struct BestModel {
    std::optional<double> metric = {};
    std::optional<int64_t> step = {};
    std::string checkpoint = "";
    bool is_in_memory = false;
  };
  BestModel best_before_;               // the best model before the present one
  Tensor values_before_;                // its values, if they were in memory only
  std::optional<BestModel> lost_best_;  // the best one whose checkpoint has failed
  bool save_has_failed_ = false;        // on the main process: since the last AgreeOnBest
  bool sees_main_folder_ = true;        // the output folder of the main process
  std::string begun_best_;  // the checkpoint of the best step that this training has begun last
  // LoadBestModel has given the model the values of an earlier step.
  bool model_is_best_ = false;
  std::vector<std::string> notes_;
  Clock::time_point saved_time_ = Clock::now();
  std::optional<Error> save_error_;  // on the main process, if save_failure is "stop"
  // The place in the data, and the tokens seen, after the last complete step.
  StateDict place_;
  int64_t tokens_of_steps_ = 0;
  bool is_evaluating_ = false;  // true from the beginning of an evaluation to its end
  bool epoch_is_open_ = false;  // AfterEpoch is still to come
  int64_t tokens_before_ = 0, steps_before_ = 0;  // of earlier processes of this training
  nlohmann::json metrics_;
};

}  // namespace lathe
