// Tests that callbacks go on from their states when a training goes on from a checkpoint. Also
// tests when a resumed training stops early.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/callbacks/early_stopping_callback.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

std::string Folder(const std::string& name) {
  return testing::TempDir() + "trainer_resume_callbacks_test/" + name;
}

// Arguments for 2 epochs of 4 steps into an empty folder, with a checkpoint after each step.
TrainingArguments Arguments(const std::string& folder) {
  std::filesystem::remove_all(Folder(folder));
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder(folder);
  arguments.save_strategy = "steps";
  arguments.save_steps = 1;
  return arguments;
}

// Returns the last step, or the error's message.
std::string LastStep(const TrainingArguments& arguments,
                     const std::vector<std::shared_ptr<Callback>>& callbacks) {
  try {
    Accelerator accelerator(AcceleratorOptionsOf(arguments));
    Trainer trainer(arguments, accelerator, TinyInputs(), callbacks);
    trainer.Train();
    return std::to_string(trainer.state().global_step);
  } catch (const Error& e) {
    return e.message();
  }
}

// Arguments for an evaluation after each step, none of which is an improvement but the first.
TrainingArguments StoppingArguments(const std::string& folder, int64_t patience) {
  TrainingArguments arguments = Arguments(folder);
  arguments.eval_strategy = "steps";
  arguments.eval_steps = 1;
  arguments.early_stopping_patience = patience;
  arguments.early_stopping_threshold = 1e6;
  arguments.load_best_model_at_end = true;
  return arguments;
}

std::string LastStep(const TrainingArguments& arguments) {
  if (!arguments.early_stopping_patience) return LastStep(arguments, {});
  return LastStep(arguments,
                  {std::make_shared<EarlyStoppingCallback>(*arguments.early_stopping_patience,
                                                           arguments.early_stopping_threshold)});
}

// The checkpoint of the step after which a training has stopped early is the end of it, unless it
// is given more patience.
TEST(TrainerResumeCallbacksTest, PatienceMayChange) {
  EXPECT_EQ(LastStep(StoppingArguments("stopped", 3)), "4");
  const auto resumed = [&](int64_t patience) {
    TrainingArguments arguments = StoppingArguments("resumed", patience);
    arguments.resume_from_checkpoint = Folder("stopped") + "/checkpoint-4";
    return LastStep(arguments);
  };
  EXPECT_EQ(resumed(3), "4");
  EXPECT_EQ(ReadFile(Folder("stopped") + "/model.safetensors"),
            ReadFile(Folder("resumed") + "/model.safetensors"));
  EXPECT_EQ(resumed(2), "4");
  EXPECT_EQ(resumed(5), "6");
  TrainingArguments without = Arguments("resumed");
  without.resume_from_checkpoint = Folder("stopped") + "/checkpoint-4";
  EXPECT_EQ(LastStep(without), "8");
}

// The last of all planned steps is saved, but not the one after which a training stops early.
TEST(TrainerResumeCallbacksTest, AnEarlyStopIsSavedOnlyWhereItIsDue) {
  for (const auto& [patience, last] : {std::pair(3, 3), std::pair(99, 8)}) {
    TrainingArguments arguments = StoppingArguments("due", patience);
    arguments.load_best_model_at_end = false;  // which saves each best model
    arguments.save_steps = 3;
    EXPECT_EQ(LastStep(arguments), patience == 3 ? "4" : "8");
    for (const int step : {3, 4, 8}) {
      EXPECT_EQ(std::filesystem::exists(Folder("due") + "/checkpoint-" + std::to_string(step)),
                step == 3 || step == last)
          << step << " with patience " << patience;
    }
  }
}

// A training that has not counted before begins to count, with the best metric of before.
TEST(TrainerResumeCallbacksTest, PatienceMayComeLater) {
  TrainingArguments first = StoppingArguments("patient", 1);
  first.early_stopping_patience = {};
  first.early_stopping_threshold = 0;
  EXPECT_EQ(LastStep(first), "8");
  TrainingArguments arguments = StoppingArguments("resumed", 2);
  arguments.resume_from_checkpoint = Folder("patient") + "/checkpoint-4";
  EXPECT_EQ(LastStep(arguments), "6");
}

// Counts steps, and refuses to go on from fewer than `least`.
class StepCounter : public Callback {
 public:
  explicit StepCounter(int64_t least = 0) : least_(least) {}
  void OnStepEnd(const TrainingArguments&, const TrainerState&, TrainerControl&) override {
    ++count_;
  }
  std::string StateName() const override { return "StepCounter"; }
  nlohmann::json State() const override { return {{"attributes", {{"count", count_}}}}; }
  void LoadState(const nlohmann::json& state) override {
    count_ = state.at("attributes").at("count");
    Check(count_ >= least_, "step_counter", "there are only ", count_, " steps");
  }
  int64_t count() const { return count_; }

 private:
  int64_t least_, count_ = 0;
};

TEST(TrainerResumeCallbacksTest, CallbacksGoOnFromTheirStates) {
  TrainingArguments arguments = Arguments("counted");
  const auto first = std::make_shared<StepCounter>();
  EXPECT_EQ(LastStep(arguments, {first}), "8");
  EXPECT_EQ(first->count(), 8);
  arguments.resume_from_checkpoint = Folder("counted") + "/checkpoint-3";
  const auto second = std::make_shared<StepCounter>(3);
  EXPECT_EQ(LastStep(arguments, {second}), "8");
  EXPECT_EQ(second->count(), 8);
  EXPECT_EQ(LastStep(arguments, {std::make_shared<StepCounter>(4)}),
            Folder("counted") +
                "/checkpoint-3/trainer_state.json: \"StepCounter\": there are only 3 steps");
}

TEST(TrainerResumeCallbacksTest, NamesOfStatesMustDiffer) {
  const auto counter = std::make_shared<StepCounter>();
  EXPECT_EQ(LastStep(Arguments("twice"), {counter, std::make_shared<StepCounter>()}),
            "[trainer] two callbacks keep their states under the name StepCounter");
  EXPECT_EQ(LastStep(StoppingArguments("none", 1), {counter}),
            "early_stopping_patience needs an EarlyStoppingCallback");
}

}  // namespace
}  // namespace lathe
