// Reports a training's numbers to the trackers that arguments.report_to names, while it runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/trackers/tracker_list.h"
#include "lathe/train/callback.h"

namespace lathe {

// Trackers get what the Trainer logs, under the names that Transformers gives them: "train/loss",
// "train/learning_rate", "eval/accuracy". The main process alone writes, into one folder:
// arguments.logging_dir, else $TENSORBOARD_LOGGING_DIR, else runs/<time>_<host> in
// arguments.output_dir, or in the working folder if there is none. A training that goes on from a
// checkpoint adds to what is there. A folder that can't be written to, or a full disk, is one
// warning, and the training goes on.
class TrackerCallback : public Callback {
 public:
  // `hyperparameters` is the object that trackers show beside the numbers (Tracker::Start). If it
  // is empty, they show the arguments that TrainerHyperparameters lists.
  explicit TrackerCallback(nlohmann::json hyperparameters = nlohmann::json::object());
  TrackerCallback(const TrackerCallback&) = delete;
  TrackerCallback& operator=(const TrackerCallback&) = delete;

  bool SetsControl() const override { return false; }
  void OnTrainBegin(const TrainingArguments& arguments, const TrainerState& state,
                    TrainerControl& control) override;
  void OnLog(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control,
             const nlohmann::json& logs) override;
  void OnTrainEnd(const TrainingArguments& arguments, const TrainerState& state,
                  TrainerControl& control) override;

  // Reports an evaluation that is no event of a Trainer, such as that after the training. The main
  // process calls it. Returns warnings, one line each.
  std::vector<std::string> LogEvaluation(const TrainingArguments& arguments, int64_t step,
                                         const nlohmann::json& metrics);

 private:
  void Open(const TrainingArguments& arguments, const nlohmann::json& hyperparameters);
  // Moves the warnings of the trackers to the control.
  void Report(TrainerControl& control);

  nlohmann::json hyperparameters_;
  std::string folder_;                 // empty until the first Open
  std::vector<std::string> warnings_;  // warnings that the control hasn't got yet
  std::vector<std::string> told_;      // all warnings so far, since none is told twice
  TrackerList trackers_;
};

// Returns the logs of a Trainer under the names that its trackers give them, without the step.
nlohmann::json TrackedValues(const nlohmann::json& logs);

}  // namespace lathe
