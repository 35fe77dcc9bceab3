// Shows people a training's progress: bars of its steps and its evaluations, and a line for each
// logged entry, each evaluation and each warning (train/support/progress.h).
#pragma once

#include <optional>

#include "lathe/train/callback.h"
#include "lathe/train/support/progress.h"

namespace lathe {

// Prints on the main process only. arguments.disable_tqdm leaves out the bars, and
// arguments.loss_curve draws the loss below the bar of the steps.
class ProgressCallback : public Callback {
 public:
  bool SetsControl() const override { return false; }

  void OnTrainBegin(const TrainingArguments& arguments, const TrainerState& state,
                    TrainerControl& control) override;
  void OnStepEnd(const TrainingArguments& arguments, const TrainerState& state,
                 TrainerControl& control) override;
  void OnLog(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control,
             const nlohmann::json& logs) override;
  void OnEncodeBegin(const TrainingArguments& arguments, const TrainerState& state,
                     TrainerControl& control, int64_t num_batches) override;
  void OnEncodeStep(const TrainingArguments& arguments, const TrainerState& state,
                    TrainerControl& control) override;
  void OnEvaluateBegin(const TrainingArguments& arguments, const TrainerState& state,
                       TrainerControl& control, int64_t num_batches) override;
  void OnPredictionStep(const TrainingArguments& arguments, const TrainerState& state,
                        TrainerControl& control) override;
  void OnEvaluate(const TrainingArguments& arguments, const TrainerState& state,
                  TrainerControl& control, const nlohmann::json& metrics) override;
  void OnCheckpoint(const TrainingArguments& arguments, const TrainerState& state,
                    TrainerControl& control, const std::string& checkpoint) override;
  void OnWarning(const TrainingArguments& arguments, const TrainerState& state,
                 TrainerControl& control, const std::string& text) override;
  void OnTrainEnd(const TrainingArguments& arguments, const TrainerState& state,
                  TrainerControl& control) override;

 private:
  // All are empty except on the main process.
  std::optional<Progress> train_, evaluation_, encoding_;
};

}  // namespace lathe
