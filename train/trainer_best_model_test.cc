// Tests which model is the best, which checkpoints stay for its sake, and which model is loaded at
// the end. Resumes are in trainer_best_model_resume_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/trainer_runs_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Makes the checkpoint of one step fail, as a full disk does.
class FullDisk : public Listener {
 public:
  explicit FullDisk(int64_t step) : part_(CheckpointName(step) + ".") {}
  void OnSave(const TrainingArguments&, const TrainerState&, TrainerControl&,
              const std::string& dir) override {
    if (dir.find(part_) != std::string::npos) throw FileError(dir + "/own.txt", ENOSPC);
  }

 private:
  std::string part_;  // of the folder's name
};

TEST(TrainerBestModelTest, TheBestStaysAndIsLoadedWithoutACopyInMemory) {
  Remove("best");
  TrainingArguments arguments = Arguments("best", KeepTheBest);
  arguments.save_total_limit = 1;
  arguments.greater_is_better = true;  // the highest loss, which is not that of the last step
  const Look look = [](const Trainer& trainer) {
    return std::to_string(*trainer.state().best_global_step) + " " +
           trainer.state().best_model_checkpoint;
  };
  const std::string said = TrainAndLook(arguments, 1, look);
  const int64_t best = std::stoll(said);
  EXPECT_EQ(said.substr(said.find(' ') + 1), Folder("best") + "/" + CheckpointName(best));
  ASSERT_LT(best, 16);
  std::vector<std::string> expected = {CheckpointName(best), "checkpoint-16"};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(CheckpointsIn("best"), expected);
  EXPECT_EQ(ReadFile(Folder("best") + "/model.safetensors"),
            ReadFile(Folder("best") + "/" + CheckpointName(best) + "/model.safetensors"));
  // The best one counts, so a limit of 2 keeps no more.
  Remove("best");
  arguments.save_total_limit = 2;
  EXPECT_EQ(TrainAndLook(arguments, 1, look), said);
  EXPECT_EQ(CheckpointsIn("best"), expected);
}

// Each step is saved before its epoch is evaluated, and so before it can be known as the best. In
// one of the two directions the model after step 8 is the best.
TEST(TrainerBestModelTest, TheBestStaysIfItIsSavedBeforeItsEvaluation) {
  std::set<std::string> best_ones;
  for (const bool greater_is_better : {false, true}) {
    Remove("saved_before");
    TrainingArguments arguments = Arguments("saved_before", EvaluateEachEpoch);
    arguments.greater_is_better = greater_is_better;
    arguments.save_total_limit = 2;
    const std::string best = TrainAndLook(arguments, 1, [](const Trainer& trainer) {
      return CheckpointName(*trainer.state().best_global_step) + " " +
             trainer.state().best_model_checkpoint;
    });
    const std::string name = best.substr(0, best.find(' '));
    EXPECT_EQ(best, name + " " + Folder("saved_before") + "/" + name);
    EXPECT_NO_THROW(OpenCheckpoint(Folder("saved_before") + "/" + name));
    EXPECT_EQ(CheckpointsIn("saved_before"),
              (std::vector<std::string>{"checkpoint-16", "checkpoint-8"}));
    best_ones.insert(name);
  }
  EXPECT_EQ(best_ones, (std::set<std::string>{"checkpoint-16", "checkpoint-8"}));
}

// Returns the steps that were saved as the best so far, if the one of `full_at` failed.
std::vector<int64_t> BestSteps(const nlohmann::json& log, bool greater_is_better,
                               int64_t full_at = -1) {
  std::vector<int64_t> steps;
  std::optional<double> best;
  for (const nlohmann::json& entry : log) {
    if (!entry.contains("eval_loss")) continue;
    const double metric = entry["eval_loss"];
    const bool better = !best || (greater_is_better ? metric > *best : metric < *best);
    if (!better || entry["step"] == full_at) continue;
    best = metric;
    steps.push_back(entry["step"]);
  }
  return steps;
}

// A later evaluation is compared with the best model that is left, on all ranks alike.
void ExpectNextBestAfterAFullDisk(bool greater_is_better, int ranks, int64_t* num_faults) {
  const auto change = [&](TrainingArguments& a) {
    KeepTheBest(a);
    a.save_strategy = "best";
    a.greater_is_better = greater_is_better;
    a.per_device_train_batch_size = 2 / ranks;
  };
  const auto state_of = [](const std::string& folder) {
    return ParseJson(ReadFile(Folder(folder) + "/trainer_state.json"));
  };
  Remove("all_saved");
  Train(Arguments("all_saved", change), ranks);
  const nlohmann::json log = state_of("all_saved").at("log_history");
  for (const int64_t full_at : BestSteps(log, greater_is_better)) {
    Remove("full");
    TrainAndLook(Arguments("full", change), ranks, {}, std::make_shared<FullDisk>(full_at));
    const std::vector<int64_t> steps = BestSteps(log, greater_is_better, full_at);
    ASSERT_FALSE(steps.empty());
    const std::string name = CheckpointName(steps.back()), best = Folder("full") + "/" + name;
    EXPECT_EQ(state_of("full").at("best_global_step"), steps.back()) << full_at;
    EXPECT_EQ(state_of("full").at("best_model_checkpoint"), best) << full_at;
    EXPECT_EQ(CheckpointsIn("full").size(), steps.size()) << full_at;
    EXPECT_EQ(ReadFile(Folder("full") + "/model.safetensors"),
              ReadFile(best + "/model.safetensors"))
        << full_at;
    ++*num_faults;
  }
}

TEST(TrainerBestModelTest, ABestModelThatCannotBeSavedIsNotTheBest) {
  for (const int ranks : {1, 2}) {
    int64_t num_faults = 0;
    for (const bool greater_is_better : {false, true})
      ExpectNextBestAfterAFullDisk(greater_is_better, ranks, &num_faults);
    EXPECT_GE(num_faults, 3);  // the second evaluation is better in one of the directions
  }
}

// The only best model is lost, so the last step's is saved, and a warning says so.
TEST(TrainerBestModelTest, WithoutASavedBestModelTheLastOneStays) {
  Remove("full");
  TrainingArguments arguments = Arguments("full", KeepTheBest);
  arguments.save_strategy = "best";
  arguments.eval_steps = 16;
  const std::string warning = TrainAndLook(
      arguments, 1, [](const Trainer&) { return last_warning; }, std::make_shared<FullDisk>(16));
  EXPECT_EQ(warning,
            "warning: the best model, that of step 16, could not be saved; the model is that of "
            "the last step");
  EXPECT_EQ(CheckpointsIn("full"), std::vector<std::string>());
  const auto state = ParseJson(ReadFile(Folder("full") + "/trainer_state.json"));
  EXPECT_TRUE(state.at("best_global_step").is_null()) << state.at("best_global_step");
  EXPECT_TRUE(state.at("best_metric").is_null()) << state.at("best_metric");
  EXPECT_TRUE(fs::exists(Folder("full") + "/model.safetensors"));
}

// Damages the model of the best checkpoint in the last step.
class Damage : public Listener {
 public:
  using Act = std::function<void(const std::string& file)>;
  explicit Damage(Act act) : act_(std::move(act)) {}
  void OnStepEnd(const TrainingArguments&, const TrainerState& state, TrainerControl&) override {
    if (state.global_step == 16 && state.is_world_process_zero)
      act_(state.best_model_checkpoint + "/model.safetensors");
  }

 private:
  Act act_;
};

void FlipTheLastBit(const std::string& file) {
  std::string bytes = ReadFile(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFileAtomically(file, bytes);
}

// Neither half a model nor a damaged one is saved at the end, but that of the last step.
TEST(TrainerBestModelTest, ADamagedBestModelIsNotLoaded) {
  const std::vector<std::pair<Damage::Act, std::string>> cases = {
      {FlipTheLastBit, "/model.safetensors: is damaged: its SHA-256 is not that of the manifest"},
      {[](const std::string& file) { fs::resize_file(file, fs::file_size(file) / 2); },
       "/model.safetensors: has "},
      {[](const std::string& file) { fs::remove(fs::path(file).parent_path() / kManifestFile); },
       "/manifest.json: No such file or directory"},
      {[](const std::string& file) { fs::remove(file); }, " with the best model is gone"}};
  const auto change = [](TrainingArguments& a) {
    KeepTheBest(a);
    a.greater_is_better = true;  // as in TheBestStaysAndIsLoadedWithoutACopyInMemory
  };
  for (const int ranks : {1, 2}) {
    for (const auto& [act, problem] : cases) {
      Remove("damaged");
      TrainingArguments arguments = Arguments("damaged", change);
      arguments.per_device_train_batch_size = 2 / ranks;
      const std::string said = TrainAndLook(
          arguments, ranks,
          [](const Trainer& trainer) {
            return last_warning + "|" + trainer.state().best_model_checkpoint +
                   (trainer.state().best_model_is_gone ? "|gone" : "|there");
          },
          std::make_shared<Damage>(act));
      const auto state = ParseJson(ReadFile(Folder("damaged") + "/trainer_state.json"));
      const std::string best = state.at("best_model_checkpoint");
      EXPECT_NE(best, Folder("damaged") + "/checkpoint-16");
      EXPECT_TRUE(said.starts_with("warning: " + best + problem)) << said;
      EXPECT_TRUE(said.ends_with("; the model is that of the last step|" + best + "|gone")) << said;
      EXPECT_EQ(ReadFile(Folder("damaged") + "/model.safetensors"),
                ReadFile(Folder("damaged") + "/checkpoint-16/model.safetensors"))
          << said;
    }
  }
}

}  // namespace
}  // namespace lathe
