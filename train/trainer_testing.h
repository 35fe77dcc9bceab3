// A tiny training and a callback that records its events, for tests of the Trainer.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/manifest.h"
#include "lathe/core/json/json_text.h"
#include "lathe/tests/tiny_bert.h"
#include "lathe/train/trainer.h"

namespace lathe {

// Arguments for 2 epochs of 4 steps with TinyInputs, without logs, evaluations and files.
inline TrainingArguments TinyArguments() {
  TrainingArguments arguments;
  arguments.per_device_train_batch_size = 2;
  arguments.per_device_eval_batch_size = 4;
  arguments.num_train_epochs = 2;
  arguments.learning_rate = 1e-3;
  arguments.device = "cpu";
  return arguments;
}

inline TrainerInputs TinyInputs() {
  return {.model = TinyBert(), .train = TinyData(8), .evaluation = TinyData(6)};
}

// Gives a whole checkpoint another state.
inline void ChangeState(const std::string& checkpoint, const nlohmann::json& state) {
  CheckpointManifest manifest = ReadManifest(checkpoint);
  manifest.files.clear();
  std::filesystem::remove(checkpoint + "/" + kManifestFile);
  WriteFileAtomically(checkpoint + "/trainer_state.json", DumpJson(state));
  WriteManifest(checkpoint, manifest);
}

// Records "event step" for each event, and then calls `act`, which may change the control.
class Recorder : public Callback {
 public:
  using Act = std::function<void(const std::string& event, const TrainerState& state,
                                 TrainerControl& control)>;
  explicit Recorder(Act act = nullptr) : act_(std::move(act)) {}

  using A = TrainingArguments;
  using S = TrainerState;
  using C = TrainerControl;
  using Json = nlohmann::json;
  void OnTrainBegin(const A&, const S& s, C& c) override { Add("train_begin", s, c); }
  void OnEpochBegin(const A&, const S& s, C& c) override { Add("epoch_begin", s, c); }
  void OnStepBegin(const A&, const S& s, C& c) override { Add("step_begin", s, c); }
  void OnSubstepEnd(const A&, const S& s, C& c) override { Add("substep_end", s, c); }
  void OnStepEnd(const A&, const S& s, C& c) override { Add("step_end", s, c); }
  void OnEpochEnd(const A&, const S& s, C& c) override { Add("epoch_end", s, c); }
  void OnLog(const A&, const S& s, C& c, const Json& logs) override {
    EXPECT_EQ(logs, s.log_history.back());
    const char* of = logs.contains("loss") ? "" : logs.contains("eval_loss") ? "_eval" : "_train";
    Add(std::string("log") + of, s, c);
  }
  void OnEvaluateBegin(const A&, const S& s, C& c, int64_t num_batches) override {
    Add("evaluate_begin of " + std::to_string(num_batches), s, c);
  }
  void OnPredictionStep(const A&, const S& s, C& c) override { Add("prediction_step", s, c); }
  void OnEvaluate(const A&, const S& s, C& c, const Json& metrics) override {
    EXPECT_TRUE(metrics.contains("eval_accuracy"));
    Add("evaluate", s, c);
  }
  void OnSave(const A&, const S& s, C& c, const std::string& dir) override {
    saved_files_ = 0;
    for (const char* name : {"config.json", "model.safetensors"}) {
      saved_files_ += std::filesystem::exists(dir + "/" + name) ? 1 : 0;
    }
    WriteFileAtomically(dir + "/own.txt", std::to_string(s.global_step));
    Add("save", s, c);
  }
  void OnWarning(const A&, const S& s, C& c, const std::string& text) override { Add(text, s, c); }
  void OnTrainEnd(const A&, const S& s, C& c) override { Add("train_end", s, c); }

  const std::vector<std::string>& events() const { return events_; }
  // Returns how many of the model's files the folder had at the last save.
  int saved_files() const { return saved_files_; }

 private:
  void Add(const std::string& event, const TrainerState& state, TrainerControl& control) {
    events_.push_back(event + " " + std::to_string(state.global_step));
    if (act_) act_(event, state, control);
  }

  Act act_;
  std::vector<std::string> events_;
  int saved_files_ = 0;
};

}  // namespace lathe
