// Tests which checkpoints a training saves and keeps, and which of them a resume takes or refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/train/trainer_runs_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

std::string ErrorOf(const TrainingArguments& arguments) { return TrainAndLook(arguments, 1, {}); }

TEST(TrainerResumeNewestTest, LeavesOutDamagedOnesAndSaysSo) {
  Remove("newest");
  const TrainingArguments first = Arguments("newest");
  Train(first);
  fs::resize_file(Folder("newest") + "/checkpoint-16/optimizer.h5", 100);
  fs::remove(Folder("newest") + "/checkpoint-15/model.safetensors");
  TrainingArguments again = first;
  again.resume_from_checkpoint = "true";
  const std::string said = TrainAndLook(again, 1, [](const Trainer& trainer) {
    return trainer.resumed_from() + "|" + trainer.notes().at(0) + "|" + trainer.notes().at(1);
  });
  EXPECT_TRUE(said.starts_with(Folder("newest") +
                               "/checkpoint-14|left out checkpoint-16: optimizer.h5: has 100 "
                               "bytes, but its manifest says "))
      << said;
  EXPECT_TRUE(
      said.ends_with("|left out checkpoint-15: model.safetensors: No such file or directory"))
      << said;
  EXPECT_NO_THROW(OpenCheckpoint(Folder("newest") + "/checkpoint-16"));
}

TEST(TrainerResumeNewestTest, MistakesGetOneLine) {
  Remove("mistakes");
  TrainingArguments arguments = Arguments("mistakes");
  arguments.resume_from_checkpoint = "true";
  EXPECT_EQ(ErrorOf(arguments), Folder("mistakes") + ": has no checkpoint to go on from");
  arguments.resume_from_checkpoint = Folder("nowhere");
  EXPECT_EQ(ErrorOf(arguments), Folder("nowhere") + ": there is no such checkpoint");
  arguments.resume_from_checkpoint = "";
  Train(arguments);
  EXPECT_EQ(ErrorOf(arguments), Folder("mistakes") + ": output_dir is not empty");
  arguments.resume_from_checkpoint = Folder("mistakes") + "/checkpoint-3";
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](auto& a) { a.learning_rate = 1; }, "learning_rate was 0.001 and is 1.0"},
      {[](auto& a) { a.seed = 1; }, "seed was 42 and is 1"},
      {[](auto& a) { a.per_device_train_batch_size = 4; },
       "per_device_train_batch_size times processes was 2 and is 4"},
      {[](auto& a) { a.num_train_epochs = 3; }, "number of steps was 16 and is 24"}};
  for (const auto& [change, difference] : changes) {
    TrainingArguments changed = arguments;
    change(changed);
    EXPECT_EQ(ErrorOf(changed), Folder("mistakes") + "/checkpoint-3: " + difference);
  }
  TrainingArguments anyway = arguments;
  anyway.learning_rate = 2e-3;
  anyway.resume_anyway = true;
  anyway.output_dir = Folder("anyway");
  Remove("anyway");
  Train(anyway);
  // Options that change nothing are taken.
  TrainingArguments harmless = arguments;
  harmless.logging_steps = 1;
  harmless.save_steps = 4;
  harmless.gradient_checkpointing = true;
  harmless.ignore_data_skip = true;
  Train(harmless);
  arguments.save_only_model = true;
  arguments.output_dir = Folder("model_only");
  arguments.resume_from_checkpoint = "";
  Remove("model_only");
  Train(arguments);
  arguments.resume_from_checkpoint = arguments.output_dir + "/checkpoint-3";
  EXPECT_EQ(ErrorOf(arguments),
            arguments.output_dir + "/checkpoint-3: holds the model alone (save_only_model)");
}

TEST(TrainerCheckpointsTest, StrategiesAndLimits) {
  const std::vector<std::pair<Change, std::vector<std::string>>> cases = {
      {[](auto& a) { a.save_steps = 6; }, {"checkpoint-12", "checkpoint-16", "checkpoint-6"}},
      {[](auto& a) { a.save_steps = 0.25; },
       {"checkpoint-12", "checkpoint-16", "checkpoint-4", "checkpoint-8"}},
      {[](auto& a) { a.save_strategy = "epoch"; }, {"checkpoint-16", "checkpoint-8"}},
      {[](auto& a) { a.save_total_limit = 2; }, {"checkpoint-15", "checkpoint-16"}},
      {[](auto& a) { a.save_strategy = "no"; }, {}},
      {[](auto& a) {
         a.save_strategy = "epoch";
         a.save_seconds = 1e-9;
       },
       {"checkpoint-1", "checkpoint-10", "checkpoint-11", "checkpoint-12", "checkpoint-13",
        "checkpoint-14", "checkpoint-15", "checkpoint-16", "checkpoint-2", "checkpoint-3",
        "checkpoint-4", "checkpoint-5", "checkpoint-6", "checkpoint-7", "checkpoint-8",
        "checkpoint-9"}}};
  for (const auto& [change, expected] : cases) {
    Remove("strategies");
    Train(Arguments("strategies", change));
    EXPECT_EQ(CheckpointsIn("strategies"), expected);
  }
}

}  // namespace
}  // namespace lathe
