// Trainings in processes of their own with a checkpoint after each step, for tests of the Trainer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/distributed/testing/testing.h"
#include "lathe/train/callbacks/early_stopping_callback.h"
#include "lathe/train/callbacks/state_callback.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {

using Change = std::function<void(TrainingArguments&)>;
using Look = std::function<std::string(const Trainer&)>;

// Returns the path of a folder that is this test's own.
inline std::string Folder(const std::string& name) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  return testing::TempDir() + "trainer_runs/" + test.test_suite_name() + "." + test.name() + "/" +
         name;
}

inline void Remove(const std::string& folder) { std::filesystem::remove_all(Folder(folder)); }

// Returns the names of the folder's checkpoints, also of unfinished ones.
inline std::vector<std::string> CheckpointsIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Folder(folder))) {
    const std::string name = entry.path().filename();
    if (name.find("checkpoint") != std::string::npos) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Arguments for 2 epochs of 8 batches, with a checkpoint after each step.
inline TrainingArguments Arguments(const std::string& folder, const Change& change = {}) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder(folder);
  arguments.weight_decay = 0.01;
  arguments.save_strategy = "steps";
  arguments.save_steps = 1;
  if (change) change(arguments);
  return arguments;
}

inline void EvaluateEachEpoch(TrainingArguments& a) {
  a.eval_strategy = "epoch";
  a.metric_for_best_model = "loss";
}

inline void KeepTheBest(TrainingArguments& a) {
  a.eval_strategy = "steps";
  a.eval_steps = 2;
  a.load_best_model_at_end = true;
  a.learning_rate = 3e-2;
}

// A frozen encoder has no dropout, so that it runs once for all epochs.
inline TrainerInputs Inputs(const TrainingArguments& arguments) {
  const nlohmann::json no_dropout = {{"hidden_dropout_prob", 0},
                                     {"attention_probs_dropout_prob", 0}};
  return {.model = TinyBert(arguments.freeze_layers.empty() ? nlohmann::json() : no_dropout),
          .train = TinyData(16),
          .evaluation = TinyData(6)};
}

inline std::string last_warning;  // that a Listener has heard of, in this process

class Listener : public Callback {
 public:
  void OnWarning(const TrainingArguments&, const TrainerState&, TrainerControl&,
                 const std::string& text) override {
    last_warning = text;
  }
  bool SetsControl() const override { return false; }
};

// Trains in processes of their own. Returns what `look` says on rank 0, or the error's message.
// `more`: another callback; null for none.
inline std::string TrainAndLook(const TrainingArguments& arguments, int ranks, const Look& look,
                                const std::shared_ptr<Callback>& more = nullptr) {
  const std::vector<RankResult> results = RunRanks(ranks, [&](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(arguments);
    options.environment = env;
    options.timeout = std::chrono::seconds(20);
    Accelerator accelerator(options);
    std::vector<std::shared_ptr<Callback>> callbacks = {std::make_shared<StateCallback>()};
    if (arguments.early_stopping_patience) {
      callbacks.push_back(std::make_shared<EarlyStoppingCallback>(
          *arguments.early_stopping_patience, arguments.early_stopping_threshold));
    }
    if (more != nullptr) callbacks.push_back(more);
    Trainer trainer(arguments, accelerator, Inputs(arguments), callbacks);
    trainer.Train();
    return look ? look(trainer) : "";
  });
  EXPECT_LT(results[0].exit_code, 128) << "a signal ended it, perhaps for taking over a minute";
  return results[0].said;
}

// Trains and expects what `look` says.
inline void Train(const TrainingArguments& arguments, int ranks = 1,
                  const std::string& expected = "", const Look& look = {}) {
  EXPECT_EQ(TrainAndLook(arguments, ranks, look), expected);
}

}  // namespace lathe
