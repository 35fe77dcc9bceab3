// Callback: a program's own code that the Trainer calls at its events. The events have the names of
// Transformers' TrainerCallback.
//
//   class StopWhenAccurate : public Callback {
//     void OnEvaluate(const TrainingArguments&, const TrainerState&, TrainerControl& control,
//                     const nlohmann::json& metrics) override {
//       if (metrics.at("eval_accuracy") > 0.9) control.should_training_stop = true;
//     }
//   };
//   Trainer trainer(arguments, accelerator, {...}, {std::make_shared<StopWhenAccurate>()});
//
// The callbacks of a Trainer run in the order of its list, and each sees what those before it have
// set in the control.
//
// With several ranks, each rank has the same callbacks. All events come to all ranks but these
// four:
//   - OnSave comes only to the main process, which writes the files;
//   - OnCheckpoint does so, too;
//   - so does OnWarning if it is about the output folder, a checkpoint or a snapshot;
//   - OnWarning of a callback's own warning comes only to the rank whose control has the warning.
//
// A callback that prints or writes files should do so only if state.is_world_process_zero. The
// control is that of the whole job: what one rank asks for, all of them do, after the same step.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/train/support/training_arguments.h"
#include "lathe/train/trainer_state.h"

namespace lathe {

// What the Trainer does next. At the end of a step it first sets what the arguments ask for. Then
// callbacks may ask for more, or take back what is set. With several ranks, they all have to
// take it back.
//
// The Trainer looks at the control after OnTrainBegin, OnStepEnd, OnEpochEnd, OnLog, OnEvaluate and
// OnSave. It logs first, then evaluates, then saves, and clears each of these flags when it acts on
// it. So OnEvaluate can ask for a save of the model that was just evaluated. What is asked for at
// other events waits for the end of the step.
struct TrainerControl {
  bool should_training_stop = false;  // the Trainer then saves the model as after the last step
  bool should_log = false;
  bool should_evaluate = false;  // an error if the Trainer has no evaluation data
  // Saves a checkpoint or, with save_strategy "no", the model in the output folder. It has no
  // effect without an output folder.
  bool should_save = false;

  // What people should know of, one line each, beginning with "warning: ". Right after the event
  // the Trainer passes them to OnWarning of this process's callbacks, and forgets them.
  std::vector<std::string> warnings = {};
};

// An exception that an event throws ends the training, as an error of the Trainer's own does.
class Callback {
 public:
  virtual ~Callback() = default;

  // Returns false if this callback never changes the control, warnings aside. If no callback
  // changes it, several ranks need one small collective less at each step.
  virtual bool SetsControl() const { return true; }

  virtual void OnTrainBegin(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  virtual void OnEpochBegin(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  // Called before the first batch of a step.
  virtual void OnStepBegin(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  // Called after each batch of a step but its last one, while gradients accumulate.
  virtual void OnSubstepEnd(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  // Called after the update of the parameters. state.global_step already counts the step.
  virtual void OnStepEnd(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  // Called after the last step of an epoch, or of the training. If a signal ends the training, it
  // is not called.
  virtual void OnEpochEnd(const TrainingArguments&, const TrainerState&, TrainerControl&) {}

  // Called after an entry was added to state.log_history. The entry of training steps has "loss",
  // that of an evaluation "eval_loss", and that of the whole training "train_loss".
  virtual void OnLog(const TrainingArguments&, const TrainerState&, TrainerControl&,
                     const nlohmann::json& /*logs*/) {}

  // Called before the outputs of a frozen encoder are computed, once for all epochs. `num_batches`
  // is the number of batches of each rank.
  virtual void OnEncodeBegin(const TrainingArguments&, const TrainerState&, TrainerControl&,
                             int64_t /*num_batches*/) {}
  // Called after each of these batches.
  virtual void OnEncodeStep(const TrainingArguments&, const TrainerState&, TrainerControl&) {}

  // Called before an evaluation. `num_batches` is the number of batches of each rank.
  virtual void OnEvaluateBegin(const TrainingArguments&, const TrainerState&, TrainerControl&,
                               int64_t /*num_batches*/) {}
  // Called after each batch of an evaluation.
  virtual void OnPredictionStep(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
  // Called after an evaluation. EvalMetrics (train/evaluation.h) lists the metrics: eval_loss and
  // so on. If a signal ends the evaluation, it is not called.
  virtual void OnEvaluate(const TrainingArguments&, const TrainerState&, TrainerControl&,
                          const nlohmann::json& /*metrics*/) {}

  // Called while the model is saved, on the process that writes it. `dir` is a temporary folder.
  // Files that the callback adds there become part of the output folder, or of a checkpoint,
  // together with the model and the tokenizer. It has these already, unless a checkpoint is saved.
  // The callback must sync its files, as WriteFileAtomically does.
  virtual void OnSave(const TrainingArguments&, const TrainerState&, TrainerControl&,
                      const std::string& /*dir*/) {}

  // Called once a checkpoint is on the disk, some steps after OnSave, on the process that wrote it.
  // `checkpoint` is its folder.
  virtual void OnCheckpoint(const TrainingArguments&, const TrainerState&, TrainerControl&,
                            const std::string& /*checkpoint*/) {}

  // Called for what people should know of but that does not end the training. `text` begins with
  // "warning: ", or with "note: " if it is no problem.
  virtual void OnWarning(const TrainingArguments&, const TrainerState&, TrainerControl&,
                         const std::string& /*text*/) {}

  // What the callback needs to go on after a resume. trainer_state.json keeps it in
  // "stateful_callbacks", as Transformers keeps that of its own callbacks.
  //
  // Returns the name of the state there; "" if there is none. The callbacks of a Trainer must have
  // different names.
  virtual std::string StateName() const { return ""; }
  // Returns the state: {"args": {...}, "attributes": {...}}. Called before OnSave, on the process
  // that writes.
  virtual nlohmann::json State() const { return nlohmann::json::object(); }
  // Takes a state that State() has returned. Called before OnTrainBegin, on all ranks, if the
  // training goes on from a checkpoint that has one. An exception makes the resume fail.
  virtual void LoadState(const nlohmann::json& /*state*/) {}

  // Called after the last save. If an error ends the training, it is not called. A callback that
  // must tidy up can do so in its destructor.
  virtual void OnTrainEnd(const TrainingArguments&, const TrainerState&, TrainerControl&) {}
};

}  // namespace lathe
