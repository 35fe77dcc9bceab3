// Stops a training whose evaluations get no better, with the rules of Transformers'
// EarlyStoppingCallback.
//
//   arguments.eval_strategy = "epoch";
//   arguments.metric_for_best_model = "accuracy";
//   Trainer trainer(arguments, accelerator, {...}, {std::make_shared<EarlyStoppingCallback>(3)});
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lathe/train/callback.h"

namespace lathe {

// Counts evaluations in a row without an improvement of metric_for_best_model, and stops the
// training when there are `patience` of them. The first evaluation counts as an improvement. A
// later one does if its metric is better than the best one before it by more than `threshold`. The
// best one moves with every better evaluation, whether or not it counts as an improvement.
//
// The count is part of a checkpoint. So a training that goes on stops after the same step as one
// that was never interrupted. A checkpoint of the step at which it stopped ends it at once, unless
// the patience has grown.
class EarlyStoppingCallback : public Callback {
 public:
  // Throws InvalidArgument if `patience` is below 1 or `threshold` is negative.
  explicit EarlyStoppingCallback(int64_t patience = 1, double threshold = 0);

  // Throws InvalidArgument if there are no evaluations while training, or no metric to compare.
  void OnTrainBegin(const TrainingArguments& arguments, const TrainerState& state,
                    TrainerControl& control) override;
  void OnEvaluate(const TrainingArguments& arguments, const TrainerState& state,
                  TrainerControl& control, const nlohmann::json& metrics) override;

  std::string StateName() const override { return "EarlyStoppingCallback"; }
  nlohmann::json State() const override;
  void LoadState(const nlohmann::json& state) override;

  // Says why the training has stopped: "eval_loss has not improved for 3 evaluations; its best
  // value, 0.25, is that of step 4". Returns "" if this callback has not stopped it.
  const std::string& reason() const { return reason_; }

 private:
  void StopIfOutOfPatience(const TrainingArguments& arguments, const TrainerState& state,
                           TrainerControl& control);

  int64_t patience_;
  double threshold_;
  int64_t count_ = 0;           // evaluations in a row without an improvement
  std::optional<double> best_;  // the best metric of all evaluations so far
  bool goes_on_ = false;        // the count is that of a checkpoint
  std::string reason_;
};

}  // namespace lathe
