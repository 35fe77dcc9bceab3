// Tests the Trainer as a library: without a command line, and without files unless it is given a
// folder. apps/testing/ tests what `finetune` makes of it.
#include "lathe/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "lathe/core/json/json_text.h"
#include "lathe/train/callbacks/progress_callback.h"
#include "lathe/train/callbacks/state_callback.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

using Events = std::vector<std::string>;

std::string Folder(const std::string& name) { return testing::TempDir() + "trainer_test/" + name; }

int64_t Count(const Events& events, const std::string& event) {
  return std::ranges::count_if(events, [&](const auto& e) { return e.starts_with(event + " "); });
}

// Trains and returns the state at the end.
TrainerState TrainWith(const TrainingArguments& arguments,
                       std::vector<std::shared_ptr<Callback>> callbacks,
                       TrainerInputs inputs = TinyInputs()) {
  Accelerator accelerator(AcceleratorOptionsOf(arguments));
  Trainer trainer(arguments, accelerator, std::move(inputs), std::move(callbacks));
  trainer.Train();
  EXPECT_FALSE(trainer.interrupted());
  return trainer.state();
}

std::string ErrorOf(const TrainingArguments& arguments, TrainerInputs inputs = TinyInputs(),
                    std::vector<std::shared_ptr<Callback>> callbacks = {}) {
  try {
    TrainWith(arguments, std::move(callbacks), std::move(inputs));
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(TrainerTest, CallsEventsInOrder) {
  TrainingArguments arguments = TinyArguments();
  arguments.gradient_accumulation_steps = 2;
  arguments.num_train_epochs = 1;
  arguments.logging_steps = 2;
  arguments.eval_strategy = "epoch";
  const auto recorder = std::make_shared<Recorder>();
  TrainWith(arguments, {recorder});
  EXPECT_EQ(recorder->events(),
            (Events{"train_begin 0", "epoch_begin 0", "step_begin 0", "substep_end 0", "step_end 1",
                    "step_begin 1", "substep_end 1", "step_end 2", "log 2", "epoch_end 2",
                    "evaluate_begin of 2 2", "prediction_step 2", "prediction_step 2", "log_eval 2",
                    "evaluate 2", "log_train 2", "train_end 2"}));
}

TEST(TrainerTest, LearnsWithoutFiles) {
  TrainingArguments arguments = TinyArguments();
  arguments.num_train_epochs = 30;
  arguments.learning_rate = 1e-2;
  arguments.logging_steps = 1;
  const auto recorder = std::make_shared<Recorder>();
  const TrainerState state =
      TrainWith(arguments, {recorder}, {.model = TinyBert(), .train = TinyData(8)});
  EXPECT_EQ(state.global_step, 120);
  EXPECT_EQ(state.epoch, 30);
  EXPECT_GT(state.log_history[0].at("loss"), 0.5);
  EXPECT_LT(*state.loss, 0.2);
  EXPECT_EQ(state.log_history[119].at("loss"), *state.loss);
  EXPECT_EQ(Count(recorder->events(), "save"), 0);
}

TEST(TrainerTest, ACallbackStops) {
  for (const char* event : {"step_begin", "step_end"}) {
    const auto recorder = std::make_shared<Recorder>([&](auto& e, auto& state, auto& control) {
      if (e == event && state.global_step >= 2) control.should_training_stop = true;
    });
    const TrainerState state = TrainWith(TinyArguments(), {recorder});
    const int64_t last = event == std::string("step_end") ? 2 : 3;
    EXPECT_EQ(state.global_step, last) << event;
    EXPECT_EQ(Count(recorder->events(), "step_end"), last);
    EXPECT_EQ(Count(recorder->events(), "epoch_end"), 1);
    EXPECT_EQ(recorder->events().back(), "train_end " + std::to_string(last));
  }
}

TEST(TrainerTest, ACallbackStopsBeforeTheFirstStep) {
  const auto recorder = std::make_shared<Recorder>(
      [](auto&, auto&, auto& control) { control.should_training_stop = true; });
  EXPECT_EQ(TrainWith(TinyArguments(), {recorder}).global_step, 0);
  EXPECT_EQ(recorder->events(), (Events{"train_begin 0", "log_train 0", "train_end 0"}));
}

TEST(TrainerTest, ACallbackAsksForALogAnEvaluationAndASave) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder("asked");
  arguments.overwrite_output_dir = true;
  const auto recorder = std::make_shared<Recorder>([](auto& e, auto& state, auto& control) {
    if (e == "step_end" && state.global_step == 2) control.should_log = true;
    if (e == "log") control.should_evaluate = true;
    if (e == "evaluate") control.should_save = true;
  });
  TrainWith(arguments, {recorder, std::make_shared<StateCallback>()});
  Events acts;
  for (const std::string& event : recorder->events()) {
    if (event.starts_with("log") || event.starts_with("evaluate ") || event.starts_with("save"))
      acts.push_back(event);
  }
  EXPECT_EQ(acts, (Events{"log 2", "log_eval 2", "evaluate 2", "save 2", "log_train 8", "save 8"}));
  EXPECT_EQ(recorder->saved_files(), 2);
  EXPECT_EQ(ReadFile(arguments.output_dir + "/own.txt"), "8");
  const auto state = ParseJson(ReadFile(arguments.output_dir + "/trainer_state.json"));
  EXPECT_EQ(state.at("global_step"), 8);
  EXPECT_EQ(state.at("log_history").size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(arguments.output_dir + "/train_results.json"));
}

// Logs, evaluations and saves don't change what is learned.
TEST(TrainerTest, CountsTheTimeBesideTheSteps) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = Folder("times");
  arguments.overwrite_output_dir = true;
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  // The second evaluation is followed by a save.
  double before = -1;
  const auto recorder = std::make_shared<Recorder>([&](auto& e, auto& state, auto& control) {
    if (e == "step_end" && state.global_step <= 2) control.should_evaluate = true;
    if (e == "step_end" && state.global_step == 1) before = state.seconds_beside_steps;
    if (e == "step_end" && state.global_step > 4) wait();  // is a part of the steps
    if (e.starts_with("evaluate_begin") || e == "save") wait();
    if (e == "evaluate" && state.global_step == 2) control.should_save = true;
  });
  Accelerator accelerator(AcceleratorOptionsOf(arguments));
  Trainer trainer(arguments, accelerator, TinyInputs(), {recorder});
  trainer.Train();
  EXPECT_EQ(before, 0);
  EXPECT_EQ(Count(recorder->events(), "evaluate_begin"), 2);
  EXPECT_EQ(Count(recorder->events(), "save"), 2);
  // The last save comes after the time is taken.
  EXPECT_GE(trainer.state().seconds_beside_steps, 0.3);
  EXPECT_LE(trainer.state().seconds_beside_steps,
            trainer.metrics().at("train_runtime").get<double>() - 0.4);
}

TEST(TrainerTest, AskingChangesNoBit) {
  std::vector<std::string> models;
  for (const bool asks : {false, true}) {
    TrainingArguments arguments = TinyArguments();
    arguments.output_dir = Folder(asks ? "busy" : "quiet");
    arguments.overwrite_output_dir = true;
    const auto recorder = std::make_shared<Recorder>([&](auto& e, auto&, auto& control) {
      if (asks && e == "step_end") control = {false, true, true, true};
    });
    TrainWith(arguments, {recorder});
    EXPECT_EQ(Count(recorder->events(), "save"), asks ? 9 : 1);
    models.push_back(ReadFile(arguments.output_dir + "/model.safetensors"));
  }
  EXPECT_EQ(models[0], models[1]);
}

TEST(TrainerTest, ALogThatIsAskedForTwiceIsWrittenOnce) {
  const auto recorder = std::make_shared<Recorder>([](auto& e, auto& state, auto& control) {
    if (e == "step_end" || e == "epoch_end") control.should_log = state.global_step == 4;
  });
  TrainWith(TinyArguments(), {recorder});
  EXPECT_EQ(Count(recorder->events(), "log"), 1);
}

TEST(TrainerTest, CallbacksSeeTheControlOfThoseBefore) {
  TrainingArguments arguments = TinyArguments();
  arguments.logging_steps = 4;
  arguments.eval_strategy = "steps";
  arguments.eval_steps = 2;
  std::vector<int64_t> asked;  // the steps at which the second callback sees what the first set
  const auto first = std::make_shared<Recorder>([](auto& e, auto& state, auto& control) {
    if (e == "step_end" && state.global_step == 3) control.should_log = true;
  });
  const auto second = std::make_shared<Recorder>([&](auto& e, auto& state, auto& control) {
    if (e != "step_end") return;
    if (control.should_log) asked.push_back(state.global_step);
    if (state.global_step == 4) control.should_log = false;  // takes back what the arguments ask
    if (state.global_step > 2) control.should_evaluate = false;
  });
  TrainWith(arguments, {first, second});
  EXPECT_EQ(asked, (std::vector<int64_t>{3, 4, 8}));
  for (const auto& recorder : {first, second}) {
    EXPECT_EQ(Count(recorder->events(), "log"), 2);
    EXPECT_EQ(Count(recorder->events(), "evaluate"), 1);
  }
}

// Each callback gets each warning once, right after the event. That of the end comes, too.
TEST(TrainerTest, WarningsOfACallbackReachAllCallbacks) {
  const auto first = std::make_shared<Recorder>([](auto& e, auto& state, auto& control) {
    if ((e == "step_end" && state.global_step == 3) || e == "train_end")
      control.warnings.push_back("warning: " + e);
  });
  const auto second = std::make_shared<Recorder>();
  TrainWith(TinyArguments(), {first, second});
  for (const auto& recorder : {first, second}) {
    const Events& events = recorder->events();
    const auto at = std::ranges::find(events, "warning: step_end 3");
    ASSERT_NE(at, events.end());
    EXPECT_EQ(*(at - 1), "step_end 3");
    EXPECT_EQ(events.back(), "warning: train_end 8");
    EXPECT_EQ(Count(events, "warning: step_end"), 1);
  }
}

// Somebody removes the folder while the training runs. No line may name what was in it.
TEST(TrainerTest, AWarningNamesNoCheckpointThatIsGone) {
  namespace fs = std::filesystem;
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = testing::TempDir() + "trainer_test_gone";
  arguments.save_strategy = "steps";
  arguments.save_steps = 2;
  fs::remove_all(arguments.output_dir);
  const auto recorder = std::make_shared<Recorder>([&](auto& event, auto& state, auto&) {
    if (event != "step_begin" || state.global_step != 3) return;
    while (!fs::exists(arguments.output_dir + "/checkpoint-2"))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fs::remove_all(arguments.output_dir);
  });
  Accelerator accelerator(AcceleratorOptionsOf(arguments));
  Trainer trainer(arguments, accelerator, TinyInputs(), {recorder});
  EXPECT_THROW(trainer.Train(), Error);  // the model has no place
  std::string warning;
  for (const std::string& event : recorder->events()) {
    if (event.starts_with("warning: no checkpoint was saved after step 4: ")) warning = event;
  }
  EXPECT_FALSE(warning.empty());
  EXPECT_EQ(warning.find("the newest one is"), std::string::npos) << warning;
}

TEST(TrainerTest, TheProgressCallbackPrints) {
  TrainingArguments arguments = TinyArguments();
  arguments.logging_steps = 8;
  arguments.eval_strategy = "epoch";
  testing::internal::CaptureStdout();
  TrainWith(arguments, {std::make_shared<ProgressCallback>()});
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(out.starts_with("eval at step 4  eval_accuracy 0.")) << out;
  EXPECT_NE(out.find("\nstep 8/8  epoch 2.00  loss 0."), std::string::npos) << out;
  EXPECT_NE(out.find("  learning_rate 0.000125\neval at step 8"), std::string::npos) << out;
  EXPECT_EQ(std::ranges::count(out, '\n'), 3);
}

TEST(TrainerTest, KeepsTheBestModel) {
  TrainingArguments arguments = TinyArguments();
  arguments.eval_strategy = "epoch";
  arguments.load_best_model_at_end = true;
  const TrainerState state = TrainWith(arguments, {});
  EXPECT_TRUE(state.best_metric);
  EXPECT_TRUE(state.best_global_step);
}

TEST(TrainerTest, ReportsDivergenceWithoutAFolder) {
  TrainingArguments arguments = TinyArguments();
  arguments.learning_rate = 1e30;
  const std::string error = ErrorOf(arguments);
  EXPECT_TRUE(error.starts_with("step ")) << error;
  EXPECT_NE(error.find("parameter"), std::string::npos) << error;
}

TEST(TrainerTest, SavesTheLastGoodModelInAFolder) {
  TrainingArguments arguments = TinyArguments();
  arguments.learning_rate = 1e30;
  arguments.output_dir = Folder("diverged");
  arguments.overwrite_output_dir = true;
  EXPECT_TRUE(ErrorOf(arguments).starts_with("step "));
  EXPECT_TRUE(std::filesystem::exists(arguments.output_dir + "/model.safetensors"));
}

TEST(TrainerTest, RefusesWhatDoesNotFit) {
  const TrainingArguments good = TinyArguments();
  EXPECT_EQ(ErrorOf(good, {.model = nullptr, .train = TinyData(8)}), "[trainer] there is no model");
  EXPECT_EQ(ErrorOf(good, {.model = TinyBert(), .train = TinyData(0)}),
            "[trainer] the training data must have samples");
  TrainingArguments arguments = good;
  arguments.eval_strategy = "epoch";
  EXPECT_EQ(ErrorOf(arguments, {.model = TinyBert(), .train = TinyData(8)}),
            "[trainer] eval_strategy epoch needs evaluation data");
  arguments.eval_strategy = "never";
  EXPECT_EQ(ErrorOf(arguments), "eval_strategy must be one of no, steps, epoch but is \"never\"");
  arguments = good;
  arguments.dataloader_drop_last = true;
  arguments.per_device_train_batch_size = 9;
  EXPECT_EQ(ErrorOf(arguments), "the training data: 8 samples do not fill a batch of 9");
  EXPECT_EQ(ErrorOf(arguments, {.model = TinyBert(), .train = TinyData(1)}),
            "the training data: 1 sample does not fill a batch of 9");
  arguments = good;
  arguments.load_best_model_at_end = true;
  EXPECT_EQ(ErrorOf(arguments), "load_best_model_at_end needs evaluations while training");
  EXPECT_EQ(ErrorOf(good, TinyInputs(), {nullptr}), "[trainer] a callback is null");

  const auto asks = std::make_shared<Recorder>(
      [](auto&, auto&, auto& control) { control.should_evaluate = true; });
  EXPECT_EQ(ErrorOf(good, {.model = TinyBert(), .train = TinyData(8)}, {asks}),
            "[trainer] a callback has asked for an evaluation, but there is no evaluation data");

  arguments = good;
  arguments.gradient_accumulation_steps = 2;
  Accelerator accelerator(AcceleratorOptionsOf(good));
  try {
    Trainer trainer(arguments, accelerator, TinyInputs());
    ADD_FAILURE() << "the accelerator accumulates differently";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "gradient_accumulation_steps is 2 but the Accelerator's is 1");
  }
}

}  // namespace
}  // namespace lathe
