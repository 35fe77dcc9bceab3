// Resumes that find the best model by another metric, or with other data, than the training before.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/callbacks/early_stopping_callback.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

std::string Folder(const std::string& name) {
  return testing::TempDir() + "trainer_other_measure_test/" + name;
}

// Arguments for 8 steps, with an evaluation and a checkpoint after each.
TrainingArguments Arguments(const std::string& folder, const std::string& metric) {
  std::filesystem::remove_all(Folder(folder));
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder(folder);
  arguments.save_strategy = arguments.eval_strategy = "steps";
  arguments.save_steps = arguments.eval_steps = 1;
  arguments.metric_for_best_model = metric;
  return arguments;
}

// The same for a training that goes on after step 4 of another one.
TrainingArguments GoesOn(const TrainingArguments& first, const std::string& metric) {
  TrainingArguments arguments = Arguments("resumed", metric);
  arguments.lr_scheduler_type = first.lr_scheduler_type;
  arguments.early_stopping_patience = first.early_stopping_patience;
  arguments.early_stopping_threshold = first.early_stopping_threshold;
  arguments.load_best_model_at_end = true;
  arguments.resume_from_checkpoint = first.output_dir + "/checkpoint-4";
  return arguments;
}

struct Outcome {
  std::vector<std::string> notes;
  TrainerState state;
  std::vector<double> metrics;  // of the evaluations after step 4
};

Outcome Train(const TrainingArguments& arguments, int64_t num_rows = 6) {
  Accelerator accelerator(AcceleratorOptionsOf(arguments));
  TrainerInputs inputs = TinyInputs();
  inputs.evaluation = TinyData(num_rows);
  std::vector<std::shared_ptr<Callback>> callbacks;
  if (arguments.early_stopping_patience) {
    callbacks.push_back(std::make_shared<EarlyStoppingCallback>(
        *arguments.early_stopping_patience, arguments.early_stopping_threshold));
  }
  Trainer trainer(arguments, accelerator, inputs, callbacks);
  trainer.Train();
  Outcome outcome = {trainer.notes(), trainer.state(), {}};
  for (const nlohmann::json& entry : trainer.state().log_history) {
    const std::string name = BestModelMetric(arguments);
    if (entry.contains(name) && entry.at("step") > 4) outcome.metrics.push_back(entry.at(name));
  }
  return outcome;
}

void ExpectNewBest(const Outcome& outcome, const std::string& difference) {
  ASSERT_FALSE(outcome.notes.empty());
  EXPECT_EQ(outcome.notes.back(), "the best model so far counts no more: " + difference);
  ASSERT_EQ(outcome.metrics.size(), 4u);
  EXPECT_EQ(outcome.state.best_metric, *std::ranges::min_element(outcome.metrics));
  EXPECT_GT(outcome.state.best_global_step, 4);
  EXPECT_TRUE(outcome.state.best_model_checkpoint.starts_with(Folder("resumed/")))
      << outcome.state.best_model_checkpoint;
}

constexpr char kOtherMetric[] = "the metric of the best model was eval_accuracy and is eval_loss";

TEST(OtherMeasure, AMetricOfBeforeIsNotCompared) {
  TrainingArguments first = Arguments("first", "accuracy");
  Train(first);
  ExpectNewBest(Train(GoesOn(first, "loss")), kOtherMetric);
  // Where evaluations have decided before, another metric needs resume_anyway.
  first.load_best_model_at_end = true;
  std::filesystem::remove_all(first.output_dir);
  Train(first);
  TrainingArguments resumed = GoesOn(first, "loss");
  EXPECT_THROW(Train(resumed), Error);
  resumed.resume_anyway = true;
  ExpectNewBest(Train(resumed), kOtherMetric);
}

TEST(OtherMeasure, OtherDataIsNotCompared) {
  const TrainingArguments first = Arguments("first", "loss");
  Train(first);
  ExpectNewBest(Train(GoesOn(first, "loss"), 5),
                "the number of rows of the validation data was 6 and is 5");
  const Outcome same = Train(GoesOn(first, "loss"));
  EXPECT_TRUE(same.notes.empty());
  EXPECT_TRUE(same.state.best_metric);
}

// A training between that compares nothing hands on what it got.
TEST(OtherMeasure, ATrainingThatComparesNothingKeepsTheBest) {
  TrainingArguments first = Arguments("first", "accuracy");
  first.load_best_model_at_end = true;
  Train(first);
  const nlohmann::json before =
      ParseJson(ReadFile(first.output_dir + "/checkpoint-4/trainer_state.json"));
  for (const bool evaluates : {true, false}) {
    TrainingArguments between = GoesOn(first, "");
    between.load_best_model_at_end = false;
    if (!evaluates) between.eval_strategy = "no";
    const Outcome kept = Train(between);
    EXPECT_TRUE(kept.notes.empty()) << kept.notes.back();
    EXPECT_EQ(kept.state.best_metric, before.at("best_metric").get<double>());
    EXPECT_EQ(kept.state.best_global_step, before.at("best_global_step").get<int64_t>());
    TrainingArguments last = Arguments("last", "loss");
    last.load_best_model_at_end = true;
    last.resume_from_checkpoint = between.output_dir + "/checkpoint-6";
    const Outcome other = Train(last);
    ASSERT_FALSE(other.notes.empty());
    EXPECT_EQ(other.notes.back(),
              std::string("the best model so far counts no more: ") + kOtherMetric);
    EXPECT_GT(other.state.best_global_step, 6);
    last = Arguments("last", "accuracy");
    last.load_best_model_at_end = true;
    last.resume_from_checkpoint = between.output_dir + "/checkpoint-6";
    const Outcome same = Train(last);
    EXPECT_TRUE(same.notes.empty()) << same.notes.back();
    EXPECT_GE(same.state.best_metric, kept.state.best_metric);
  }
}

// Checkpoints of older versions tell the measure among their settings, if evaluations decided.
TEST(OtherMeasure, OfAnOlderVersion) {
  TrainingArguments first = Arguments("first", "accuracy");
  first.load_best_model_at_end = true;
  Train(first);
  const std::string folder = first.output_dir + "/checkpoint-4";
  nlohmann::json state = ParseJson(ReadFile(folder + "/trainer_state.json"));
  state["stateful_callbacks"]["Lathe"]["attributes"].erase("best_by");
  ChangeState(folder, state);
  TrainingArguments resumed = GoesOn(first, "loss");
  resumed.resume_anyway = true;
  ExpectNewBest(Train(resumed), kOtherMetric);
}

TEST(OtherMeasure, PatienceBeginsAnew) {
  TrainingArguments first = Arguments("first", "accuracy");
  first.early_stopping_patience = 4;
  first.early_stopping_threshold = 1e6;  // no evaluation but the first is an improvement
  EXPECT_EQ(Train(first).state.global_step, 5);
  TrainingArguments resumed = GoesOn(first, "accuracy");
  EXPECT_EQ(Train(resumed).state.global_step, 5);
  resumed = GoesOn(first, "loss");
  resumed.resume_anyway = true;
  EXPECT_EQ(Train(resumed).state.global_step, 8);
}

TEST(OtherMeasure, AScheduleComparesAnew) {
  TrainingArguments first = Arguments("first", "accuracy");
  first.lr_scheduler_type = "reduce_lr_on_plateau";
  Train(first);
  TrainingArguments resumed = GoesOn(first, "loss");
  resumed.resume_anyway = true;
  const Outcome outcome = Train(resumed);
  ExpectNewBest(outcome, kOtherMetric);
  const auto state = ParseJson(ReadFile(Folder("resumed") + "/checkpoint-8/trainer_state.json"));
  const double best = state.at("/stateful_callbacks/Lathe/attributes/scheduler/best"_json_pointer);
  EXPECT_EQ(std::ranges::count(outcome.metrics, best), 1) << best;
}

// The best model of before is kept, and the schedule has begun anew at the first resume only.
TEST(OtherMeasure, AScheduleGoesOnAtTheNextResume) {
  TrainingArguments first = Arguments("first", "accuracy");
  first.lr_scheduler_type = "reduce_lr_on_plateau";
  Train(first);
  TrainingArguments between = GoesOn(first, "");
  between.load_best_model_at_end = false;
  between.resume_anyway = true;
  Train(between);
  TrainingArguments last = Arguments("last", "");
  last.lr_scheduler_type = first.lr_scheduler_type;
  last.resume_from_checkpoint = between.output_dir + "/checkpoint-7";
  Train(last);
  const auto schedule_of = [](const std::string& folder) {
    return ParseJson(ReadFile(folder + "/checkpoint-8/trainer_state.json"))
        .at("/stateful_callbacks/Lathe/attributes/scheduler"_json_pointer);
  };
  const nlohmann::json best = schedule_of(between.output_dir).at("best");
  EXPECT_EQ(schedule_of(last.output_dir), schedule_of(between.output_dir));
  const nlohmann::json earlier =
      ParseJson(ReadFile(between.output_dir + "/checkpoint-7/trainer_state.json"));
  EXPECT_LE(best, earlier.at("/stateful_callbacks/Lathe/attributes/scheduler/best"_json_pointer));
}

}  // namespace
}  // namespace lathe
