// Tests resumes of a training that was already over.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

using nlohmann::json;

TrainingArguments ArgumentsFor(const std::string& name) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = testing::TempDir() + "trainer_resume_finished_test/" + name;
  arguments.save_strategy = "epoch";
  return arguments;
}

json TrainInto(const TrainingArguments& arguments) {
  Accelerator accelerator(AcceleratorOptionsOf(arguments));
  Trainer trainer(arguments, accelerator, TinyInputs());
  trainer.Train();
  EXPECT_EQ(trainer.state().global_step, 8);
  return trainer.metrics();
}

TEST(TrainerResumeFinishedTest, KeepsTheTimesOfTheTraining) {
  TrainingArguments arguments = ArgumentsFor("times");
  std::filesystem::remove_all(arguments.output_dir);
  const std::string results = arguments.output_dir + "/train_results.json";
  const json trained = TrainInto(arguments);
  EXPECT_GT(trained.at("train_steps_per_second"), 0);
  arguments.resume_from_checkpoint = arguments.output_dir + "/checkpoint-8";
  EXPECT_EQ(TrainInto(arguments), trained);
  EXPECT_EQ(ParseJson(ReadFile(results)), trained);

  // Without the file, or with another training's, the numbers are this run's own.
  json other = trained;
  other["train_loss"] = 99.0;
  for (const std::string& text : {DumpJson(other), std::string("{"), std::string("[]")}) {
    WriteFileAtomically(results, text);
    const json own = TrainInto(arguments);
    EXPECT_EQ(own.at("train_steps_per_second"), 0) << text;
    EXPECT_EQ(own.at("train_loss"), trained.at("train_loss"));
  }
}

TEST(TrainerResumeFinishedTest, MoreStepsHaveTheirOwnTimes) {
  TrainingArguments arguments = ArgumentsFor("more");
  std::filesystem::remove_all(arguments.output_dir);
  arguments.max_steps = 8;
  const json trained = TrainInto(arguments);
  arguments.resume_from_checkpoint = arguments.output_dir + "/checkpoint-4";
  const json resumed = TrainInto(arguments);
  EXPECT_NE(resumed.at("train_runtime"), trained.at("train_runtime"));
  EXPECT_GT(resumed.at("train_steps_per_second"), 0);
}

}  // namespace
}  // namespace lathe
