// The training loop behind `finetune`, with Trainer's rules: steps and warm-up are counted in
// optimizer steps; a step is clip, update, schedule, zero; the rate that is logged is the one used.
// A step's loss is the mean over the samples of its accumulation window, which makes a short last
// window exact.
//
//   Trainer trainer(options, task, out);
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
  // All must outlive it. `out` is the main process's and null on others. Throws for options that
  // don't fit the data.
  Trainer(const FinetuneArguments& options, Accelerator& accelerator, Task& task, OutputDir* out);

  // The steps to come, for people.
  std::string Plan() const;
  // Trains and saves, once. When a loss or a gradient is not finite it saves the model as it was
  // before that step and throws, naming the step and the first bad parameter.
  void Train();
  // Treats an evaluation of the trained model in which a number is not finite as Train does such a
  // loss.
  // `data` names it in the error: "evaluation", "test".
  void CheckFinite(const Evaluation& evaluation, const std::string& data);

  bool interrupted() const { return interrupted_; }
  const TrainerState& state() const { return state_; }
  // train_loss, train_runtime, ...; after Train.
  const nlohmann::json& metrics() const { return metrics_; }

 private:
  // trainer.cc: the loop.
  void CheckMetricName() const;
  void TrainEpoch();
  void Accumulate(const Batch& batch);
  void FinishStep();
  bool SnapshotIsDue() const;
  void TakeSnapshot();
  void AfterStep(bool epoch_ends);

  // trainer_report.cc: what is read from the loop and written to files.
  // Looks at the losses and norms of the steps since the last time. False where gradients in
  // float16 have overflown, so that the step will be skipped.
  bool ReadLosses();
  void WarnOfSmallScale(double scale);
  void LogStep();
  void EvaluateNow();
  // `model_is_bad`: its parameters, as they are now, are what gave the bad number. All processes
  // come here together, unless `alone`: then the main one does.
  [[noreturn]] void Diverged(int64_t step, const std::string& what, bool model_is_bad,
                             bool alone = false);
  std::string FirstBadParameter();
  std::string FirstBadParameterOfAll();
  // Of what the last update made, which no loss has shown yet.
  void CheckLastUpdate();
  bool ParametersAreFinite() const;
  void Save();
  nlohmann::json TrainMetrics(double seconds) const;

  // trainer_lost_ranks.cc: when other processes are lost.
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
  std::string metric_name_;  // decides which model is best: "eval_loss"
  bool greater_is_better_;
  int64_t steps_per_epoch_ = 0;
  TrainerState state_;

  std::vector<Batch> window_;  // the batches of the present step
  std::optional<Batch> last_batch_;
  // Steps whose losses and norms nobody has looked at. On the host and with several processes it is
  // never more than the present one; on a GPU, looking would wait for it, and the guard holds back
  // what comes after a bad step.
  struct UnreadStep {
    std::vector<Batch> window;
    Tensor grad_norm;
    Tensor scale = {};  // the loss scale of its gradients; undefined where each step is looked at
  };
  std::vector<UnreadStep> unread_;
  bool reads_each_step_;
  StepGuard guard_;
  double grad_norm_ = 0;  // of the last step that was looked at
  double loss_since_log_ = 0, loss_total_ = 0;
  int64_t logged_step_ = 0, evaluated_step_ = 0, steps_read_ = 0;
  int64_t samples_seen_ = 0;
  double time_to_first_step_ = 0;
  Snapshot good_values_;  // the last ones that are known to have given a finite loss and gradient
  int64_t good_step_ = 0;
  bool warned_of_snapshot_ = false, warned_of_scale_ = false;
  std::chrono::steady_clock::time_point good_time_;
  std::chrono::steady_clock::duration good_duration_{};  // that taking them took
  Tensor best_values_;  // the arena's values when the metric was best
  bool interrupted_ = false;
  nlohmann::json metrics_;
};

}  // namespace lathe
