// Tests which model is left in the output folder if a rank is lost at a bad moment.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/testing/testing.h"
#include "lathe/train/callbacks/state_callback.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// So many words that a snapshot takes long, and the next one is not due within this test.
constexpr int64_t kManyWords = 100'000;

// Rank 1 ends once the checkpoint of step 2 is there. Meanwhile rank 0's parameters have gone bad.
// Its only snapshot is from before the first step, or from a later one on a slow machine.
TEST(TrainerLostRanksTest, TheModelIsNoOlderThanTheNewestCheckpoint) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = testing::TempDir() + "trainer_lost_ranks_test";
  arguments.per_device_train_batch_size = 1;
  arguments.save_strategy = "steps";
  arguments.save_steps = 2;
  fs::remove_all(arguments.output_dir);
  const std::string checkpoint = arguments.output_dir + "/checkpoint-2";
  const std::vector<RankResult> results = RunRanks(2, [&](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(arguments);
    options.environment = env;
    options.timeout = std::chrono::seconds(30);
    Accelerator accelerator(options);
    TrainerInputs inputs = TinyInputs();
    inputs.model = TinyBert({{"vocab_size", kManyWords}});
    const std::vector<Parameter> parameters = inputs.model->Parameters();
    const auto act = [&](const std::string& event, const TrainerState& state, TrainerControl&) {
      if (event != "step_begin" || state.global_step != 3) return;
      while (!fs::exists(checkpoint)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (env.rank == 1) _exit(9);
      Tensor first = parameters.front().tensor;
      first.values<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    };
    Trainer trainer(arguments, accelerator, inputs, {std::make_shared<Recorder>(act)});
    try {
      trainer.Train();
    } catch (const Error& e) {
      return e.hint();
    }
    return std::string("nothing was lost");
  });
  const std::string& said = results[0].said;
  constexpr char kSays[] = "; the model after step ";
  const size_t at = said.find(kSays);
  ASSERT_NE(at, std::string::npos) << said;
  const int step = std::stoi(said.substr(at + sizeof kSays - 1));
  EXPECT_GE(step, 2) << said;
  EXPECT_EQ(ReadFile(arguments.output_dir + "/own.txt"), std::to_string(step)) << said;
  EXPECT_TRUE(
      said.ends_with(" is in " + arguments.output_dir + "; training can go on from " + checkpoint))
      << said;
  if (step == 2) {
    EXPECT_EQ(ReadFile(arguments.output_dir + "/model.safetensors"),
              ReadFile(checkpoint + "/model.safetensors"));
  }
  EXPECT_NO_THROW(OpenCheckpoint(checkpoint));
}

// Rank 0 ends before the step after `step`, once a checkpoint is there. Rank 1 saves alone.
void LoseTheMainProcess(const TrainingArguments& arguments, int64_t step,
                        const std::string& checkpoint) {
  const std::vector<RankResult> results = RunRanks(2, [&](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(arguments);
    options.environment = env;
    options.timeout = std::chrono::seconds(30);
    Accelerator accelerator(options);
    const auto act = [&](const std::string& event, const TrainerState& state, TrainerControl&) {
      if (env.rank != 0 || event != "step_begin" || state.global_step != step) return;
      while (!fs::exists(checkpoint)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      _exit(9);
    };
    Trainer trainer(arguments, accelerator, TinyInputs(), {std::make_shared<Recorder>(act)});
    try {
      trainer.Train();
    } catch (const Error& e) {
      return e.hint();
    }
    return std::string("nothing was lost");
  });
  const std::string& said = results[1].said;
  EXPECT_TRUE(said.ends_with("; training can go on from " + arguments.output_dir + "/" +
                             CheckpointName(step)))
      << said;
}

std::vector<int64_t> StepsIn(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const NumberedFolder& found : ListNumberedFolders(folder, "checkpoint-"))
    steps.push_back(found.number);
  return steps;
}

// Another rank's checkpoint belongs to the same training, so it takes the place of older ones.
TEST(TrainerLostRanksTest, ACheckpointOfAnotherRankBelongsToTheSameTraining) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = testing::TempDir() + "trainer_lost_main_process_test";
  arguments.per_device_train_batch_size = 1;
  arguments.shard_optimizer = false;
  arguments.save_strategy = "steps";
  arguments.save_steps = 2;
  arguments.save_total_limit = 1;
  fs::remove_all(arguments.output_dir);
  LoseTheMainProcess(arguments, 3, arguments.output_dir + "/checkpoint-2");
  EXPECT_EQ(StepsIn(arguments.output_dir), std::vector<int64_t>{3});
  EXPECT_EQ(ReadManifest(arguments.output_dir + "/checkpoint-3").run, 1);
  // Now no save comes before the loss, so only the resume can tell the number.
  arguments.save_steps = 100;
  arguments.resume_from_checkpoint = "true";
  LoseTheMainProcess(arguments, 5, arguments.output_dir + "/checkpoint-3");
  EXPECT_EQ(StepsIn(arguments.output_dir), std::vector<int64_t>{5});
  EXPECT_EQ(ReadManifest(arguments.output_dir + "/checkpoint-5").run, 1);
}

// Arguments for two ranks and 16 steps, of which the last one has not the best model.
TrainingArguments ArgumentsForTheBest(const std::string& folder) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = testing::TempDir() + folder;
  arguments.per_device_train_batch_size = 1;
  arguments.learning_rate = 3e-2;
  arguments.shard_optimizer = false;
  arguments.save_strategy = arguments.eval_strategy = "steps";
  arguments.save_steps = arguments.eval_steps = 2;
  arguments.load_best_model_at_end = true;
  arguments.greater_is_better = true;
  fs::remove_all(arguments.output_dir);
  return arguments;
}

// Trains on two ranks, of which `lost` has a callback more. If `lost` is 2, both have it. Returns
// the hint of the other's error, or of rank 0's.
std::string TrainWith(const TrainingArguments& arguments, int lost = 0,
                      const std::shared_ptr<Callback>& callback = nullptr) {
  const std::vector<RankResult> results = RunRanks(2, [&](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(arguments);
    options.environment = env;
    options.timeout = std::chrono::seconds(30);
    Accelerator accelerator(options);
    std::vector<std::shared_ptr<Callback>> callbacks = {std::make_shared<StateCallback>()};
    if ((env.rank == lost || lost == 2) && callback != nullptr) callbacks.push_back(callback);
    const TrainerInputs inputs = {
        .model = TinyBert(), .train = TinyData(16), .evaluation = TinyData(6)};
    Trainer trainer(arguments, accelerator, inputs, callbacks);
    try {
      trainer.Train();
    } catch (const Error& e) {
      return e.hint();
    }
    return std::string("nothing was lost");
  });
  return results[lost == 0 ? 1 : 0].said;
}

std::string ModelIn(const std::string& folder) { return ReadFile(folder + "/model.safetensors"); }

int64_t BestStepIn(const std::string& folder) {
  const auto state = ParseJson(ReadFile(folder + "/trainer_state.json"));
  return state.at("best_global_step").get<int64_t>();
}

std::string Words(int64_t step, const std::string& folder) {
  return "; the model after step " + std::to_string(step) + " is in " + folder +
         "; training can go on from " + folder + "/checkpoint-16";
}

// Ends this rank once the other one has surely come out of the calls that both have made.
void EndSoon() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  _exit(9);
}

class EndsInTheLastSave : public Callback {
 public:
  void OnSave(const TrainingArguments&, const TrainerState&, TrainerControl&,
              const std::string& dir) override {
    if (dir.find("checkpoint-") == std::string::npos) EndSoon();
  }
  bool SetsControl() const override { return false; }
};

// The parameters are the best model's by then, and the moments are those of the last step.
TEST(TrainerLostRanksTest, TheLastCheckpointStaysAsItIsWhileTheBestModelIsSaved) {
  const TrainingArguments whole = ArgumentsForTheBest("trainer_lost_at_no_time_test"),
                          lost = ArgumentsForTheBest("trainer_lost_in_the_last_save_test");
  EXPECT_EQ(TrainWith(whole), "nothing was lost");
  const std::string said = TrainWith(lost, 0, std::make_shared<EndsInTheLastSave>());
  const std::string& folder = lost.output_dir;
  const int64_t best = BestStepIn(whole.output_dir);
  ASSERT_NE(best, 16);
  EXPECT_TRUE(said.ends_with(Words(best, folder))) << said;
  EXPECT_TRUE(ModelIn(folder) == ModelIn(folder + "/" + CheckpointName(best)));
  EXPECT_TRUE(ModelIn(folder) == ModelIn(whole.output_dir));
  EXPECT_TRUE(ModelIn(folder + "/checkpoint-16") == ModelIn(whole.output_dir + "/checkpoint-16"));
  EXPECT_FALSE(ModelIn(folder) == ModelIn(folder + "/checkpoint-16"));
  EXPECT_NO_THROW(OpenCheckpoint(folder + "/checkpoint-16"));
}

// Rank 0 can't save the best checkpoint. It ends when it warns of that, just before all ranks read
// the best one that is left.
class EndsBeforeTheBestIsRead : public Callback {
 public:
  explicit EndsBeforeTheBestIsRead(int64_t best) : best_(best) {}
  void OnSave(const TrainingArguments&, const TrainerState& state, TrainerControl&,
              const std::string& dir) override {
    if (state.global_step == best_) throw FileError(dir + "/own.txt", ENOSPC);
  }
  void OnWarning(const TrainingArguments&, const TrainerState&, TrainerControl&,
                 const std::string& text) override {
    if (text.starts_with("warning: the best model")) EndSoon();
  }
  bool SetsControl() const override { return false; }

 private:
  int64_t best_;
};

TEST(TrainerLostRanksTest, TheLastModelIsSavedIfARankIsLostBeforeTheBestIsRead) {
  const TrainingArguments arguments = ArgumentsForTheBest("trainer_lost_before_the_best_test");
  const std::string& folder = arguments.output_dir;
  EXPECT_EQ(TrainWith(arguments), "nothing was lost");
  const int64_t best = BestStepIn(folder);
  fs::remove_all(folder);
  const std::string said = TrainWith(arguments, 0, std::make_shared<EndsBeforeTheBestIsRead>(best));
  EXPECT_TRUE(said.ends_with(Words(16, folder))) << said;
  EXPECT_TRUE(ModelIn(folder) == ModelIn(folder + "/checkpoint-16"));
}

nlohmann::json StateIn(const std::string& folder) {
  return ParseJson(ReadFile(folder + "/trainer_state.json"));
}

// Ends the rank once the best model is known, and before its checkpoint is begun.
class EndsInTheBestEvaluation : public Callback {
 public:
  explicit EndsInTheBestEvaluation(int64_t best) : best_(best) {}
  void OnEvaluate(const TrainingArguments&, const TrainerState& state, TrainerControl&,
                  const nlohmann::json&) override {
    if (state.global_step == best_) EndSoon();
  }
  bool SetsControl() const override { return false; }

 private:
  int64_t best_;
};

TEST(TrainerLostRanksTest, TheCheckpointOfTheBestStepIsTheBest) {
  const TrainingArguments arguments = ArgumentsForTheBest("trainer_lost_at_the_best_test");
  const std::string& folder = arguments.output_dir;
  EXPECT_EQ(TrainWith(arguments), "nothing was lost");
  const int64_t best = BestStepIn(folder);
  fs::remove_all(folder);
  TrainWith(arguments, 1, std::make_shared<EndsInTheBestEvaluation>(best));
  const std::string checkpoint = folder + "/" + CheckpointName(best);
  EXPECT_EQ(StateIn(checkpoint).at("best_model_checkpoint"), checkpoint);
}

// The checkpoint of the best step takes seconds. The rank that writes it ends after the next step,
// or while it waits for its disk at the next save.
class EndsWhileTheBestIsWritten : public Callback {
 public:
  EndsWhileTheBestIsWritten(int64_t best, bool waits) : best_(best), waits_(waits) {}
  void OnSave(const TrainingArguments&, const TrainerState& state, TrainerControl&,
              const std::string& dir) override {
    if (state.global_step != best_) return;
    const std::string file = dir + "/large";
    WriteFileAtomically(file, "");
    fs::resize_file(file, int64_t{16} << 30);  // takes no room, but long to read
    if (!waits_) return;
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      _exit(9);
    }).detach();
  }
  void OnStepEnd(const TrainingArguments&, const TrainerState& state, TrainerControl&) override {
    if (state.global_step == best_ + 1 && !waits_) EndSoon();
  }
  bool SetsControl() const override { return false; }

 private:
  int64_t best_;
  bool waits_;
};

TEST(TrainerLostRanksTest, NoCheckpointNamesABestThatWasNeverSaved) {
  TrainingArguments arguments = ArgumentsForTheBest("trainer_lost_with_the_best_test");
  const std::string& folder = arguments.output_dir;
  EXPECT_EQ(TrainWith(arguments), "nothing was lost");
  const int64_t best = BestStepIn(folder);
  const std::string older = folder + ".older";
  fs::remove_all(older);
  fs::rename(folder, older);
  arguments.save_total_limit = 1;
  struct Case {
    int64_t every;
    bool waits, has_older;
  };
  for (const auto& [every, waits, has_older] :
       {Case{best, false, false}, {1, false, false}, {1, true, false}, {best, false, true}}) {
    fs::remove_all(folder);
    if (has_older) {  // the checkpoint of another training has the name of the best one
      const std::string path = folder + "/" + CheckpointName(best);
      fs::create_directories(folder);
      fs::copy(older + "/" + CheckpointName(best), path, fs::copy_options::recursive);
      fs::last_write_time(path + "/" + kManifestFile,
                          fs::file_time_type::clock::now() - std::chrono::hours(1));
    }
    arguments.overwrite_output_dir = has_older;
    arguments.save_steps = arguments.eval_steps = every;
    const std::string said =
        TrainWith(arguments, 0, std::make_shared<EndsWhileTheBestIsWritten>(best, waits));
    // An older checkpoint leads to the best model again. Without one there is no best model.
    const int64_t newest = every < best ? best - every : best + 1;
    const std::string checkpoint = folder + "/" + CheckpointName(newest);
    EXPECT_TRUE(said.ends_with("; training can go on from " + checkpoint)) << said;
    EXPECT_EQ(StateIn(checkpoint).at("best_model_checkpoint").is_null(), every == best) << every;
  }
}

// Ends the rank before the step after `step`.
class EndsAfterStep : public Callback {
 public:
  explicit EndsAfterStep(int64_t step) : step_(step) {}
  void OnStepBegin(const TrainingArguments&, const TrainerState& state, TrainerControl&) override {
    if (state.global_step == step_) EndSoon();
  }
  bool SetsControl() const override { return false; }

 private:
  int64_t step_;
};

// Nobody is writing the best checkpoint, so an older one leads nowhere better.
TEST(TrainerLostRanksTest, ABestThatTheUserHasRemovedKeepsNoStepsFromBeingSaved) {
  TrainingArguments arguments = ArgumentsForTheBest("trainer_lost_after_the_best_test");
  const std::string& folder = arguments.output_dir;
  EXPECT_EQ(TrainWith(arguments), "nothing was lost");
  fs::remove_all(folder + "/" + CheckpointName(BestStepIn(folder)));
  arguments.save_steps = 1000;
  arguments.num_train_epochs = 3;
  arguments.resume_anyway = true;
  arguments.resume_from_checkpoint = "true";
  const std::string said = TrainWith(arguments, 1, std::make_shared<EndsAfterStep>(18));
  EXPECT_TRUE(said.ends_with("; training can go on from " + folder + "/checkpoint-18")) << said;
}

// Rank 1 ends before it knows where its part of the checkpoint of step 2 belongs.
class EndsBeforeItsPart : public Callback {
 public:
  explicit EndsBeforeItsPart(std::string flag) : flag_(std::move(flag)) {}
  void OnSave(const TrainingArguments&, const TrainerState&, TrainerControl&,
              const std::string&) override {
    while (!fs::exists(flag_)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void OnStepBegin(const TrainingArguments&, const TrainerState& state, TrainerControl&) override {
    if (state.global_step != 2 || state.is_world_process_zero) return;
    WriteFileAtomically(flag_, "");
    _exit(9);
  }
  bool SetsControl() const override { return false; }

 private:
  std::string flag_;
};

TEST(TrainerLostRanksTest, NobodyWaitsForThePartOfALostRank) {
  TrainingArguments arguments = ArgumentsForTheBest("trainer_lost_part_test");
  arguments.shard_optimizer = true;
  const std::string flag = arguments.output_dir + ".flag";
  fs::remove(flag);
  const auto begin = std::chrono::steady_clock::now();
  const std::string said = TrainWith(arguments, 2, std::make_shared<EndsBeforeItsPart>(flag));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_NE(said.find("; the model after step 2 is in " + arguments.output_dir), std::string::npos)
      << said;
}

}  // namespace
}  // namespace lathe
