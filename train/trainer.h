// The training loop behind `finetune`, with the rules of Transformers' Trainer. Steps and warm-up
// are counted in optimizer steps. A step clips the gradients, updates the parameters, advances the
// schedule and zeroes the gradients. The logged rate is the one that was used. A step's loss is the
// mean over the samples of its accumulation window, so that a short last window is exact, too.
//
//   Trainer trainer(options, accelerator, task, out);
//   trainer.Train();                    // saves the model and its logs
//   if (trainer.interrupted()) ...
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/progress.h"
#include "lathe/train/support/snapshot.h"
#include "lathe/train/support/training_arguments.h"
#include "lathe/train/task/task.h"
#include "lathe/train/trainer_state.h"

namespace lathe {

class Trainer {
 public:
  // All arguments must outlive the trainer. `out` is null except on the main process. Throws for
  // options that don't fit the data.
  Trainer(const FinetuneArguments& options, Accelerator& accelerator, Task& task, OutputDir* out);

  // Describes the steps to come, for people.
  std::string Plan() const;
  // Trains and saves; call it once. If a loss or a gradient is not finite, saves the model as it
  // was before that step and throws. The error names the step and the first bad parameter.
  void Train();
  // If a number in this evaluation of the trained model is not finite, does what Train does for
  // such a loss. `data` names the evaluation in the error: "evaluation", "test".
  void CheckFinite(const Evaluation& evaluation, const std::string& data);

  bool interrupted() const { return interrupted_; }
  const TrainerState& state() const { return state_; }
  // train_loss, train_runtime and so on; valid after Train.
  const nlohmann::json& metrics() const { return metrics_; }

 private:
  // The loop (trainer.cc).
  void CheckMetricName() const;
  void TrainEpoch();
  void Accumulate(const Batch& batch);
  void FinishStep();
  bool SnapshotIsDue() const;
  void TakeSnapshot();
  void AfterStep(bool epoch_ends);

  // Reading results and writing files (trainer_report.cc).
  //
  // Reads the losses and norms of the steps since the last call. Returns false if the last step's
  // gradients in float16 have overflowed, so that its update is skipped.
  bool ReadLosses();
  void WarnOfSmallScale(double scale);
  void LogStep();
  void EvaluateNow();
  // Restores and saves the last good model if there is one, and throws. `model_is_bad`: the
  // parameters as they are now gave the bad number. All ranks call it together; with `alone`, only
  // the main process does.
  [[noreturn]] void Diverged(int64_t step, const std::string& what, bool model_is_bad,
                             bool alone = false);
  std::string FirstBadParameter();
  std::string FirstBadParameterOfAll();
  // Checks the result of the last update, which no loss has shown yet.
  void CheckLastUpdate();
  bool ParametersAreFinite() const;
  void Save();
  nlohmann::json TrainMetrics(double seconds) const;

  // Saving when other ranks are lost (trainer_lost_ranks.cc).
  [[noreturn]] void SaveWithoutTheOthers(const Error& lost);
  std::string LeaveHalfDoneStep();

  const FinetuneArguments& options_;
  Accelerator& accelerator_;
  Task& task_;
  OutputDir* out_;
  SequenceClassifier& model_;
  DataLoader loader_;
  AdamW optimizer_;
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<Progress> progress_;
  std::string metric_name_;  // the metric that decides which model is best, such as "eval_loss"
  bool greater_is_better_;
  int64_t steps_per_epoch_ = 0;
  TrainerState state_;

  std::vector<Batch> window_;  // the batches of the present step
  std::optional<Batch> last_batch_;
  // A step whose loss and norm have not been read yet. On the host, and with several processes,
  // this is at most the present step. On a single GPU, reading waits for the device, so that more
  // steps may be unread. `guard_` holds back the updates after a bad step.
  struct UnreadStep {
    std::vector<Batch> window;
    Tensor grad_norm;
    Tensor scale = {};  // the loss scale of its gradients; undefined if reads_each_step_
  };
  std::vector<UnreadStep> unread_;
  bool reads_each_step_;
  StepGuard guard_;
  double grad_norm_ = 0;  // of the last step that was read
  double loss_since_log_ = 0, loss_total_ = 0;
  int64_t logged_step_ = 0, evaluated_step_ = 0, steps_read_ = 0;
  int64_t samples_seen_ = 0;
  double time_to_first_step_ = 0;
  Snapshot good_values_;  // the last values that are known to have given a finite loss and gradient
  int64_t good_step_ = 0;
  bool warned_of_snapshot_ = false, warned_of_scale_ = false;
  std::chrono::steady_clock::time_point good_time_;
  std::chrono::steady_clock::duration good_duration_{};  // how long taking them took
  Tensor best_values_;  // the arena's values when the metric was best
  bool interrupted_ = false;
  nlohmann::json metrics_;
};

}  // namespace lathe
