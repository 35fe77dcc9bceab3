// Tests resumes with resume_anyway: each change is taken, or refused with a way out.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/checkpoint/state_file.h"
#include "lathe/train/checkpoint/resume_changes.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

using Change = std::function<void(TrainingArguments&)>;

std::string Folder(const std::string& name) {
  return testing::TempDir() + "trainer_resume_anyway_test/" + name;
}

struct Outcome {
  std::string error = {}, hint = {};
  std::vector<std::string> notes = {};
  int64_t steps = 0;
  double epoch = 0;
};

// What the trainings have logged, by folder.
std::map<std::string, nlohmann::json> logs;

// Trains for 2 epochs of `rows` rows into an empty folder, with a checkpoint after each step.
Outcome Train(const std::string& folder, const Change& change, int64_t rows = 16) {
  std::filesystem::remove_all(Folder(folder));
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder(folder);
  arguments.save_strategy = "steps";
  arguments.save_steps = 1;
  arguments.logging_steps = 1;
  if (change) change(arguments);
  try {
    Accelerator accelerator(AcceleratorOptionsOf(arguments));
    Trainer trainer(arguments, accelerator,
                    {.model = TinyBert(), .train = TinyData(rows), .evaluation = TinyData(6)});
    trainer.Train();
    logs[folder] = trainer.state().log_history;
    return {.notes = trainer.notes(),
            .steps = trainer.state().global_step,
            .epoch = trainer.state().epoch};
  } catch (const Error& e) {
    return {.error = e.message(), .hint = e.hint()};
  }
}

// Goes on from a checkpoint of the folder `from`, whatever has changed.
Outcome Resume(const std::string& from, int step, const Change& change, int64_t rows = 16) {
  const auto anyway = [&](TrainingArguments& a) {
    a.resume_from_checkpoint = Folder(from) + "/checkpoint-" + std::to_string(step);
    a.resume_anyway = true;
    if (change) change(a);
  };
  return Train("resumed", anyway, rows);
}

// Returns the learning rate that the step used.
double RateOf(const std::string& folder, int64_t step) {
  for (const nlohmann::json& entry : logs.at(folder)) {
    if (entry.at("step") == step && entry.contains("learning_rate"))
      return entry.at("learning_rate");
  }
  ADD_FAILURE() << "no rate of step " << step;
  return 0;
}

void Plateau(TrainingArguments& a) {
  a.lr_scheduler_type = "reduce_lr_on_plateau";
  a.lr_scheduler_kwargs = R"({"patience":0,"factor":0.5})";
  a.eval_strategy = "steps";
  a.eval_steps = 1;
  a.learning_rate = 3e-2;
}

TEST(TrainerResumeAnywayTest, TheFirstStepHasTheNewRate) {
  EXPECT_EQ(Train("first", {}).error, "");
  EXPECT_DOUBLE_EQ(RateOf("first", 6), 1e-3 * 11 / 16);
  const Outcome run = Resume("first", 5, [](auto& a) { a.learning_rate = 4e-3; });
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.notes,
            (std::vector<std::string>{"resumed anyway: learning_rate was 0.001 and is 0.004"}));
  EXPECT_DOUBLE_EQ(RateOf("resumed", 6), 4e-3 * 11 / 16);
  EXPECT_DOUBLE_EQ(RateOf("resumed", 16), 4e-3 * 1 / 16);
}

TEST(TrainerResumeAnywayTest, EachChangeIsNoted) {
  EXPECT_EQ(Train("first", {}).error, "");
  const Outcome run = Resume("first", 5, [](auto& a) {
    a.max_grad_norm = 0.5;
    a.learning_rate = 4e-3;
    a.seed = 7;
  });
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.notes,
            (std::vector<std::string>{"resumed anyway: seed was 42 and is 7",
                                      "resumed anyway: data_seed was 42 and is 7",
                                      "resumed anyway: learning_rate was 0.001 and is 0.004",
                                      "resumed anyway: max_grad_norm was 1.0 and is 0.5"}));
}

TEST(TrainerResumeAnywayTest, APlateausRateIsScaled) {
  EXPECT_EQ(Train("first", Plateau).error, "");
  ASSERT_LE(RateOf("first", 6), 3e-2);
  const Outcome run = Resume("first", 5, [](auto& a) {
    Plateau(a);
    a.learning_rate = 6e-2;
  });
  EXPECT_EQ(run.error, "");
  EXPECT_DOUBLE_EQ(RateOf("resumed", 6), 2 * RateOf("first", 6));
}

// The head's rate has groups of its own. All rates are halved together, so their quotient stays.
TEST(TrainerResumeAnywayTest, EachGroupsRateIsScaledByItsOwnChange) {
  const auto with_head = [](TrainingArguments& a) {
    Plateau(a);
    a.head_learning_rate = 0.1;
  };
  EXPECT_EQ(Train("first", with_head).error, "");
  const Outcome run = Resume("first", 5, [&](auto& a) {
    with_head(a);
    a.head_learning_rate = 0.4;
  });
  EXPECT_EQ(run.error, "");
  EXPECT_DOUBLE_EQ(RateOf("resumed", 6), RateOf("first", 6));
  const StateDict state = ReadStateFile(Folder("resumed") + "/checkpoint-6/optimizer.h5");
  const auto rates = state.Get<std::vector<double>>("optimizer", "rates");
  ASSERT_EQ(rates.size(), 4u);
  EXPECT_DOUBLE_EQ(rates.back() / rates.front(), 0.4 / 3e-2);
}

TEST(TrainerResumeAnywayTest, AnotherBatchSizeBeginsWithAWholeBatch) {
  EXPECT_EQ(Train("first", {}).error, "");
  const auto batches_of_4 = [](TrainingArguments& a) { a.per_device_train_batch_size = 4; };
  const Outcome run = Resume("first", 5, batches_of_4);
  EXPECT_EQ(run.error, "");
  ASSERT_EQ(run.notes.size(), 3u);
  EXPECT_EQ(run.notes[2],
            "the place in the data was after 10 samples of an epoch, and is after 12, as batches "
            "have 4 now");
  EXPECT_EQ(run.steps, 8);
  EXPECT_EQ(run.epoch, 1.5);  // one more batch of the first epoch, and two of the second one
  EXPECT_EQ(Resume("first", 6, batches_of_4).notes.size(), 2u);
}

TEST(TrainerResumeAnywayTest, AShorterEpochIsOver) {
  EXPECT_EQ(Train("first", {}).error, "");
  const Outcome run = Resume("first", 5, {}, /*rows=*/8);
  EXPECT_EQ(run.error, "");
  ASSERT_EQ(run.notes.size(), 3u);
  EXPECT_EQ(run.notes[0],
            "resumed anyway: the number of rows of the training data was 16 and is 8");
  EXPECT_EQ(run.notes[1], "resumed anyway: number of steps was 16 and is 8");
  EXPECT_EQ(run.notes[2],
            "the place in the data was after 10 samples of an epoch, and is at the beginning of "
            "the next one, as there is no further batch now");
  EXPECT_EQ(run.steps, 8);
  EXPECT_EQ(run.epoch, 1.75);
}

TEST(TrainerResumeAnywayTest, WhatCantBeTakenNamesTheCheckpointAndAWayOut) {
  EXPECT_EQ(Train("first", {}).error, "");
  const std::string checkpoint = Folder("first") + "/checkpoint-5";
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](auto& a) { a.freeze_layers = "embeddings"; },
       "freeze_layers was not set and is embeddings"},
      {[](auto& a) { a.head_learning_rate = 0.1; }, "head_learning_rate was not set and is 0.1"},
      {Plateau, "learning_rate was 0.001 and is 0.03"},
      {[](auto& a) {
         a.optim = "sgd";
         a.optim_args = "momentum=0.9";
       },
       "optim was not set and is sgd"},
      {[](auto& a) { a.optim = "sgd"; }, "optim was not set and is sgd"}};
  for (const auto& [change, difference] : changes) {
    const Outcome run = Resume("first", 5, change);
    EXPECT_TRUE(run.error.starts_with(checkpoint + ": ")) << run.error;
    EXPECT_EQ(run.error.find('['), std::string::npos) << run.error;
    EXPECT_TRUE(run.error.ends_with("; what has changed: " + difference)) << run.error;
    EXPECT_EQ(run.hint,
              "no training can go on with this change; begin a new one from the checkpoint's "
              "model: model_name_or_path " +
                  checkpoint);
  }
}

TEST(ResumeChangesTest, TheHintKeepsTheBatchOfAllProcesses) {
  const NamedSettings then = {{"seed", "42"},
                              {"per_device_train_batch_size times processes", "32"}};
  const std::string setting = "per_device_train_batch_size times processes";
  EXPECT_EQ(HintAboutDifference(setting, then, 1),
            "set per_device_train_batch_size 32, or set resume_anyway");
  EXPECT_EQ(HintAboutDifference(setting, then, 4),
            "set per_device_train_batch_size 8, or set resume_anyway");
  EXPECT_EQ(HintAboutDifference(setting, then, 3),
            "go on with a number of processes that divides 32, or set resume_anyway");
  EXPECT_EQ(HintAboutDifference("seed", then, 1),
            "go on with the data and options of the checkpoint, or set resume_anyway");
}

TEST(ResumeChangesTest, TheHintNamesTheEarlierCommitsOfMovedModels) {
  const std::string ones(40, '1'), twos(40, '2');
  const std::string usual =
      "go on with the data and options of the checkpoint, or set resume_anyway";
  const std::string one_model = "owner/a has moved since: set model_revision " + ones + "; else ";
  const auto hint = [](const std::string& setting, const HubCommits& then, const HubCommits& now) {
    return HintAboutDifference(setting, {}, 1, {then, now});
  };
  const HubCommits then = {{"owner/a", ones}}, now = {{"owner/a", twos}};
  for (const char* setting : {"the model's config hidden_size", "the tokenizer's vocab.txt",
                              "the digest of training token ids"})
    EXPECT_EQ(hint(setting, then, now), one_model + usual) << setting;
  // Nobody's files but the user's decide on these.
  for (const char* setting :
       {"seed", "the training dataset of size", "the digest of training labels",
        "the model's config lathe_thresholds"})
    EXPECT_EQ(hint(setting, then, now), usual) << setting;
  const std::string tokenizer = "the tokenizer's vocab.txt";
  EXPECT_EQ(hint(tokenizer, then, then), usual);
  EXPECT_EQ(hint(tokenizer, then, {}), usual);
  EXPECT_EQ(hint(tokenizer, then, {{"owner/b", twos}}), usual);
  EXPECT_EQ(hint(tokenizer, {}, now), usual);
  // One option holds for all models, so a folder takes the place of the moved one.
  EXPECT_EQ(hint(tokenizer, {{"owner/a", ones}, {"owner/b", ones}},
                 {{"owner/a", twos}, {"owner/b", ones}}),
            "owner/a has moved since: name the folder that `lathe download owner/a --revision " +
                ones + "` prints in its place; else " + usual);
}

}  // namespace
}  // namespace lathe
