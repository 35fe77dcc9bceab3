// Tests which model is left in the output folder if a rank is lost at a bad moment.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/distributed/testing/testing.h"
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

}  // namespace
}  // namespace lathe
