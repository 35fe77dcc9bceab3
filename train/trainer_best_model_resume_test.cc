// Tests that a resumed training knows, keeps and loads the best model of before.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/trainer_runs_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// The training stops after the step and before the evaluation, which the resume then makes.
TEST(TrainerBestModelTest, TheCheckpointOfAResumeMayBeTheBest) {
  Remove("first");
  TrainingArguments arguments = Arguments("first", EvaluateEachEpoch);
  Train(arguments);
  arguments.resume_from_checkpoint = Folder("first") + "/checkpoint-8";
  arguments.max_steps = 8;
  arguments.resume_anyway = true;
  EXPECT_EQ(
      TrainAndLook(arguments, 1,
                   [](const Trainer& trainer) { return trainer.state().best_model_checkpoint; }),
      arguments.resume_from_checkpoint);
}

// A resumed training keeps and loads a best checkpoint of before, even if the folder has moved and
// another training has begun in its old place.
TEST(TrainerBestModelTest, TheBestOfBeforeStaysAfterAMove) {
  const auto change = [](TrainingArguments& a) {
    KeepTheBest(a);
    a.greater_is_better = true;
    a.save_total_limit = 1;
  };
  for (const char* folder : {"best", "moved"}) Remove(folder);
  const auto best = [](const Trainer& trainer) {
    return std::to_string(*trainer.state().best_global_step);
  };
  const std::string step = TrainAndLook(Arguments("best", change), 1, best);
  fs::rename(Folder("best"), Folder("moved"));
  TrainAndLook(Arguments("best",
                         [](TrainingArguments& a) {
                           KeepTheBest(a);
                           a.seed = 7;
                         }),
               1, best);
  ASSERT_TRUE(fs::exists(Folder("best") + "/checkpoint-" + step));
  ASSERT_NE(ReadFile(Folder("best") + "/checkpoint-" + step + "/model.safetensors"),
            ReadFile(Folder("moved") + "/checkpoint-" + step + "/model.safetensors"));
  TrainingArguments arguments = Arguments("moved", change);
  arguments.output_dir += "/";
  arguments.num_train_epochs = 3;
  arguments.resume_anyway = true;
  arguments.resume_from_checkpoint = "true";
  EXPECT_EQ(TrainAndLook(arguments, 1, best), step);
  std::vector<std::string> expected = {"checkpoint-" + step, "checkpoint-24"};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(CheckpointsIn("moved"), expected);
  EXPECT_EQ(ReadFile(Folder("moved") + "/model.safetensors"),
            ReadFile(Folder("moved") + "/checkpoint-" + step + "/model.safetensors"));

  // Only the last checkpoint was copied, and another training has taken the place of the best one.
  for (const char* folder : {"alone", "kept"}) Remove(folder);
  fs::create_directories(Folder("alone"));
  fs::copy(Folder("moved") + "/checkpoint-24", Folder("alone") + "/checkpoint-24",
           fs::copy_options::recursive);
  fs::rename(Folder("moved"), Folder("kept"));
  fs::rename(Folder("best"), Folder("moved"));
  arguments = Arguments("alone", change);
  arguments.num_train_epochs = 3;
  arguments.resume_anyway = true;
  arguments.resume_from_checkpoint = "true";
  EXPECT_EQ(
      TrainAndLook(
          arguments, 1,
          [](const Trainer& trainer) { return trainer.notes().back() + "|" + last_warning; },
          std::make_shared<Listener>()),
      "warning: " + Folder("moved") + "/checkpoint-" + step +
          " with the best model is another training's now|warning: no checkpoint holds the best "
          "model, that of step " +
          step + "; the model is that of the last step");
}

// The best step of before had no checkpoint, since the best model was not asked for. An earlier
// best one may have had one.
TEST(TrainerBestModelTest, ABestWithoutACheckpointIsTold) {
  const auto change = [](TrainingArguments& a) {
    KeepTheBest(a);
    a.save_steps = 8;
    a.metric_for_best_model = "loss";
    a.load_best_model_at_end = false;
  };
  const auto look = [](const Trainer& trainer) {
    return (trainer.notes().empty() ? "" : trainer.notes().back()) + "|" + last_warning;
  };
  for (const std::string earlier : {"", "checkpoint-8"}) {
    Remove("untold");
    TrainAndLook(Arguments("untold", change), 1, {});
    const std::string checkpoint = Folder("untold") + "/checkpoint-16";
    nlohmann::json state = ParseJson(ReadFile(checkpoint + "/trainer_state.json"));
    state["best_global_step"] = 6;
    state["best_metric"] = 0;  // better than all that come
    state["best_model_checkpoint"] = nullptr;
    if (!earlier.empty()) state["best_model_checkpoint"] = Folder("untold") + "/" + earlier;
    ChangeState(checkpoint, state);
    TrainingArguments arguments = Arguments("untold", change);
    arguments.load_best_model_at_end = true;
    arguments.num_train_epochs = 3;
    arguments.resume_anyway = true;
    arguments.resume_from_checkpoint = "true";
    const std::string said = TrainAndLook(arguments, 1, look, std::make_shared<Listener>());
    EXPECT_TRUE(
        said.ends_with("|warning: no checkpoint holds the best model, that of step 6; the "
                       "model is that of the last step"))
        << said;
    EXPECT_EQ(
        said.starts_with("warning: no checkpoint holds the best model so far, that of step 6"),
        !earlier.empty())
        << said;
  }
}

// Stops with a checkpoint after one step, as SIGTERM does.
class StopAt : public Callback {
 public:
  explicit StopAt(int64_t step) : step_(step) {}
  void OnStepEnd(const TrainingArguments&, const TrainerState& state, TrainerControl&) override {
    if (state.global_step != step_) return;
    InstallInterruptHandler();
    raise(SIGTERM);
  }
  bool SetsControl() const override { return false; }

 private:
  int64_t step_;
};

// A resume that doesn't ask for the best model drops the copy of before when a better one comes.
TEST(TrainerBestModelTest, ACopyOfBeforeIsNotTakenForALaterBest) {
  const auto change = [](TrainingArguments& a) {
    KeepTheBest(a);
    a.metric_for_best_model = "loss";
    a.greater_is_better = true;
  };
  Remove("copied");
  TrainingArguments arguments = Arguments("copied", change);
  arguments.save_strategy = "no";
  const auto stop_at = [](int64_t step) { return std::make_shared<StopAt>(step); };
  TrainAndLook(arguments, 1, {}, stop_at(5));
  const std::string first = Folder("copied") + "/checkpoint-5";
  ASSERT_TRUE(fs::exists(first + "/best_model.safetensors"));
  nlohmann::json state = ParseJson(ReadFile(first + "/trainer_state.json"));
  state["best_metric"] = -1;  // worse than all that come
  ChangeState(first, state);
  arguments.load_best_model_at_end = false;
  arguments.resume_anyway = true;
  arguments.resume_from_checkpoint = "true";
  TrainAndLook(arguments, 1, {}, stop_at(9));
  EXPECT_TRUE(fs::exists(Folder("copied") + "/checkpoint-9/trainer_state.json"));
  EXPECT_FALSE(fs::exists(Folder("copied") + "/checkpoint-9/best_model.safetensors"));
}

// Only the model of the best checkpoint matters to a resume. Its state may be damaged. Its log may
// have other times, if another rank has saved the resumed checkpoint.
TEST(TrainerBestModelTest, ABestWithAnotherStateStays) {
  const auto change = [](TrainingArguments& a) {
    KeepTheBest(a);
    a.greater_is_better = true;
    a.save_total_limit = 1;
  };
  Remove("unread");
  const auto best = [](const Trainer& trainer) {
    return trainer.state().best_model_checkpoint + "|" +
           std::to_string(*trainer.state().best_global_step);
  };
  const std::string before = TrainAndLook(Arguments("unread", change), 1, best);
  const std::string place = before.substr(0, before.find('|'));
  ASSERT_NE(place, Folder("unread") + "/checkpoint-16");
  nlohmann::json state = ParseJson(ReadFile(place + "/trainer_state.json"));
  for (nlohmann::json& entry : state["log_history"]) entry["eval_runtime"] = 77;
  int epochs = 2;
  for (const std::string& text : {std::string(), DumpJson(state)}) {
    WriteFileAtomically(place + "/trainer_state.json", text);
    TrainingArguments arguments = Arguments("unread", change);
    arguments.num_train_epochs = ++epochs;
    arguments.resume_anyway = true;
    arguments.resume_from_checkpoint = "true";
    EXPECT_EQ(TrainAndLook(arguments, 1, best), before);
    EXPECT_EQ(ReadFile(Folder("unread") + "/model.safetensors"),
              ReadFile(place + "/model.safetensors"));
  }
}

// JSON is UTF-8, but a folder may have any name.
TEST(TrainerBestModelTest, TheFoldersNameMayHoldAnyBytes) {
  const std::string folder = "mod\xe8le";
  Remove(folder);
  TrainingArguments arguments = Arguments(folder, KeepTheBest);
  arguments.save_strategy = "best";
  const auto best = [](const Trainer& trainer) { return trainer.state().best_model_checkpoint; };
  const std::string first = TrainAndLook(arguments, 1, best);
  EXPECT_TRUE(first.starts_with(Folder(folder) + "/checkpoint-")) << first;
  EXPECT_EQ(ReadFile(Folder(folder) + "/model.safetensors"),
            ReadFile(first + "/model.safetensors"));
  for (const int ranks : {1, 2}) {
    arguments.per_device_train_batch_size = 2 / ranks;
    arguments.resume_from_checkpoint = "true";
    const std::string again = TrainAndLook(arguments, ranks, best);
    EXPECT_TRUE(again.starts_with(Folder(folder) + "/checkpoint-")) << again;
    EXPECT_TRUE(fs::exists(again + "/model.safetensors"));
  }
}

}  // namespace
}  // namespace lathe
