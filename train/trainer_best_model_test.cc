// Tests which model is the best, which checkpoints stay for its sake, and which model is loaded at
// the end.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/distributed/testing/testing.h"
#include "lathe/train/callbacks/state_callback.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Change = std::function<void(TrainingArguments&)>;
using Look = std::function<std::string(const Trainer&)>;

std::string Folder(const std::string& name) {
  return testing::TempDir() + "trainer_best_model_test/" + name;
}

void Remove(const std::string& folder) { fs::remove_all(Folder(folder)); }

// Arguments for 2 epochs of 8 batches, with a checkpoint after each step.
TrainingArguments Arguments(const std::string& folder, const Change& change) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder(folder);
  arguments.weight_decay = 0.01;
  arguments.save_strategy = "steps";
  arguments.save_steps = 1;
  change(arguments);
  return arguments;
}

void EvaluateEachEpoch(TrainingArguments& a) {
  a.eval_strategy = "epoch";
  a.metric_for_best_model = "loss";
}

void KeepTheBest(TrainingArguments& a) {
  a.eval_strategy = "steps";
  a.eval_steps = 2;
  a.load_best_model_at_end = true;
  a.learning_rate = 3e-2;
}

std::string last_warning;  // that a Listener has heard of, in this process

class Listener : public Callback {
 public:
  void OnWarning(const TrainingArguments&, const TrainerState&, TrainerControl&,
                 const std::string& text) override {
    last_warning = text;
  }
  bool SetsControl() const override { return false; }
};

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

// Trains in processes of their own. Returns what `look` says on rank 0, or the error's message.
// `more`: another callback; null for none.
std::string TrainAndLook(const TrainingArguments& arguments, int ranks, const Look& look,
                         const std::shared_ptr<Callback>& more = nullptr) {
  const std::vector<RankResult> results = RunRanks(ranks, [&](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(arguments);
    options.environment = env;
    options.timeout = std::chrono::seconds(20);
    Accelerator accelerator(options);
    std::vector<std::shared_ptr<Callback>> callbacks = {std::make_shared<StateCallback>()};
    if (more != nullptr) callbacks.push_back(more);
    const TrainerInputs inputs = {
        .model = TinyBert(), .train = TinyData(16), .evaluation = TinyData(6)};
    Trainer trainer(arguments, accelerator, inputs, callbacks);
    trainer.Train();
    return look ? look(trainer) : "";
  });
  EXPECT_LT(results[0].exit_code, 128) << "a signal ended it, perhaps for taking over a minute";
  return results[0].said;
}

void Train(const TrainingArguments& arguments, int ranks = 1) {
  EXPECT_EQ(TrainAndLook(arguments, ranks, {}), "");
}

std::vector<std::string> CheckpointsIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Folder(folder))) {
    const std::string name = entry.path().filename();
    if (name.find("checkpoint") != std::string::npos) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

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
    return nlohmann::json::parse(ReadFile(Folder(folder) + "/trainer_state.json"));
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
  const auto state = nlohmann::json::parse(ReadFile(Folder("full") + "/trainer_state.json"));
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
      const auto state = nlohmann::json::parse(ReadFile(Folder("damaged") + "/trainer_state.json"));
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

// Gives a whole checkpoint another state.
void ChangeState(const std::string& checkpoint, const nlohmann::json& state) {
  CheckpointManifest manifest = ReadManifest(checkpoint);
  manifest.files.clear();
  fs::remove(checkpoint + "/" + kManifestFile);
  WriteFileAtomically(checkpoint + "/trainer_state.json", state.dump());
  WriteManifest(checkpoint, manifest);
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
    nlohmann::json state = nlohmann::json::parse(ReadFile(checkpoint + "/trainer_state.json"));
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
  nlohmann::json state = nlohmann::json::parse(ReadFile(first + "/trainer_state.json"));
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
  nlohmann::json state = nlohmann::json::parse(ReadFile(place + "/trainer_state.json"));
  for (nlohmann::json& entry : state["log_history"]) entry["eval_runtime"] = 77;
  int epochs = 2;
  for (const std::string& text : {std::string(), state.dump()}) {
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
