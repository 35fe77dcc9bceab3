#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/callbacks/columns_callback.h"
#include "lathe/train/callbacks/progress_callback.h"
#include "lathe/train/callbacks/report_callback.h"
#include "lathe/train/callbacks/state_callback.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// A training that has begun, and what the callback prints to standard output.
class ProgressCallbackTest : public testing::Test {
 protected:
  ProgressCallbackTest() {
    arguments_.disable_tqdm = true;
    state_.max_steps = 8;
    state_.global_step = 3;
    state_.epoch = 1.5;
  }

  template <typename Event>
  std::string Printed(Event event) {
    testing::internal::CaptureStdout();
    event();
    return testing::internal::GetCapturedStdout();
  }

  TrainingArguments arguments_;
  TrainerState state_;
  TrainerControl control_;
  ProgressCallback callback_;
};

TEST_F(ProgressCallbackTest, PrintsALineForEachLog) {
  callback_.OnTrainBegin(arguments_, state_, control_);
  state_.grad_norm = 0.25;
  Json logs = {{"loss", 0.5}, {"learning_rate", 3e-5}};
  EXPECT_EQ(Printed([&] { callback_.OnLog(arguments_, state_, control_, logs); }),
            "step 3/8  epoch 1.50  loss 0.5000  grad_norm 0.250  learning_rate 3e-05\n");
  logs["skipped_steps"] = 2;
  logs["loss_scale"] = 1024;
  EXPECT_EQ(Printed([&] { callback_.OnLog(arguments_, state_, control_, logs); }),
            "step 3/8  epoch 1.50  loss 0.5000  grad_norm 0.250  learning_rate 3e-05"
            "  loss_scale 1024  skipped_steps 2\n");
}

TEST_F(ProgressCallbackTest, LeavesEntriesOfEvaluationsToOnEvaluate) {
  callback_.OnTrainBegin(arguments_, state_, control_);
  const Json logs = {{"eval_loss", 0.5}};
  EXPECT_EQ(Printed([&] { callback_.OnLog(arguments_, state_, control_, logs); }), "");
}

TEST_F(ProgressCallbackTest, PrintsMetricsButNotSpeeds) {
  callback_.OnTrainBegin(arguments_, state_, control_);
  callback_.OnEvaluateBegin(arguments_, state_, control_, 4);
  callback_.OnPredictionStep(arguments_, state_, control_);
  const Json metrics = {{"eval_accuracy", 0.75},
                        {"eval_loss", 0.5},
                        {"eval_runtime", 2.0},
                        {"eval_samples", 6},
                        {"eval_samples_per_second", 3.0}};
  EXPECT_EQ(Printed([&] { callback_.OnEvaluate(arguments_, state_, control_, metrics); }),
            "eval at step 3  eval_accuracy 0.7500  eval_loss 0.5000\n");
}

TEST_F(ProgressCallbackTest, PrintsOnTheMainProcessOnly) {
  for (const bool is_main : {true, false}) {
    state_.is_world_process_zero = is_main;
    ProgressCallback callback;
    const std::string printed = Printed([&] {
      callback.OnTrainBegin(arguments_, state_, control_);
      callback.OnStepEnd(arguments_, state_, control_);
      callback.OnWarning(arguments_, state_, control_, "warning: it is late");
      callback.OnEvaluateBegin(arguments_, state_, control_, 4);
      callback.OnPredictionStep(arguments_, state_, control_);
      callback.OnEvaluate(arguments_, state_, control_, {{"eval_loss", 0.5}});
      callback.OnLog(arguments_, state_, control_, {{"loss", 0.5}, {"learning_rate", 0.1}});
      callback.OnTrainEnd(arguments_, state_, control_);
    });
    EXPECT_EQ((printed.find("warning: it is late\n") != std::string::npos), is_main) << printed;
    EXPECT_EQ(printed.empty(), !is_main) << printed;
  }
}

TEST_F(ProgressCallbackTest, PrintsNothingButWarningsAfterTheTraining) {
  callback_.OnTrainBegin(arguments_, state_, control_);
  callback_.OnTrainEnd(arguments_, state_, control_);
  EXPECT_EQ(Printed([&] { callback_.OnWarning(arguments_, state_, control_, "warning: late"); }),
            "warning: late\n");
  state_.is_world_process_zero = false;
  EXPECT_EQ(Printed([&] { callback_.OnWarning(arguments_, state_, control_, "warning: late"); }),
            "");
}

TEST_F(ProgressCallbackTest, NeverSetsTheControl) { EXPECT_FALSE(callback_.SetsControl()); }

TEST(StateCallback, WritesTheStateBesideTheModel) {
  namespace fs = std::filesystem;
  const std::string dir = testing::TempDir() + "/callbacks_test_" + std::to_string(getpid());
  fs::create_directories(dir);
  TrainerState state;
  state.global_step = 3;
  state.epoch = 1.5;
  state.best_metric = 0.75;
  state.Log({{"loss", 0.5}});
  TrainerControl control;
  StateCallback callback;
  callback.OnSave({}, state, control, dir);
  const Json saved = ParseJson(ReadFile(dir + "/trainer_state.json"));
  EXPECT_EQ(saved, state.ToJson());
  EXPECT_EQ(saved.at("global_step"), 3);
  EXPECT_EQ(saved.at("best_metric"), 0.75);
  EXPECT_EQ(saved.at("log_history"), Json({{{"epoch", 1.5}, {"loss", 0.5}, {"step", 3}}}));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 1);  // no temporary file is left
  EXPECT_FALSE(callback.SetsControl());
  fs::remove_all(dir);
}

TEST(ColumnsCallback, WritesTheColumnsBesideTheModel) {
  namespace fs = std::filesystem;
  const std::string dir = testing::TempDir() + "/columns_test_" + std::to_string(getpid());
  fs::create_directories(dir);
  const TrainedColumns columns{.texts = {"a", "b"}, .label = "stars"};
  TrainerControl control;
  ColumnsCallback callback(columns);
  callback.OnSave({}, {}, control, dir);
  EXPECT_EQ(ReadTrainedColumns(dir), columns);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 1);  // no temporary file is left
  EXPECT_FALSE(callback.SetsControl());
  fs::remove_all(dir);
}

TEST(ReportCallback, NotesOnceThatItCannotWrite) {
  TrainerState state;
  TrainerControl control;
  testing::internal::CaptureStderr();
  {
    ReportCallback callback({.folder = "/no/such/folder", .title = "T", .command = ""});
    callback.OnTrainBegin({}, state, control);
    callback.OnLog({}, state, control, {{"loss", 0.5}});
    callback.OnTrainEnd({}, state, control);
    EXPECT_FALSE(callback.is_written());
  }
  const std::string notes = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(notes.starts_with("note: the report can't be written: /no/such/folder")) << notes;
  EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 1) << notes;
}

// An earlier page may be there all the same, and tells of less.
TEST(ReportCallback, KnowsWhetherItsLastPageIsWritten) {
  namespace fs = std::filesystem;
  const std::string dir = testing::TempDir() + "/written_test_" + std::to_string(getpid());
  fs::create_directories(dir);
  TrainerState state;
  TrainerControl control;
  ReportCallback callback({.folder = dir, .title = "T", .command = ""});
  EXPECT_FALSE(callback.is_written());
  callback.OnTrainBegin({}, state, control);
  callback.OnTrainEnd({}, state, control);
  EXPECT_TRUE(callback.is_written());
  fs::remove_all(dir);
  testing::internal::CaptureStderr();
  callback.AddResults({{"eval_loss", 0.5}});
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(callback.is_written());
}

TEST(ReportCallback, HasCurvesWithoutALog) {
  namespace fs = std::filesystem;
  const std::string dir = testing::TempDir() + "/curves_test_" + std::to_string(getpid());
  fs::create_directories(dir);
  TrainerState state;
  TrainerControl control;
  ReportCallback callback({.folder = dir, .title = "T", .command = ""});
  callback.OnTrainBegin({}, state, control);
  // As on a GPU, the numbers of steps 1 and 2 are read together, and those of step 3 at the end.
  for (state.global_step = 1; state.global_step <= 3; ++state.global_step) {
    if (state.global_step == 2) state.read_steps = {{1, 0.75, 2}, {2, 0.5, 3}};
    state.learning_rate = 1e-3;
    callback.OnStepEnd({}, state, control);
    state.read_steps.clear();
  }
  EXPECT_FALSE(fs::exists(dir + "/report.html"));
  state.read_steps = {{3, 0.25, 4}};
  callback.OnTrainEnd({}, state, control);
  const std::string page = ReadFile(dir + "/report.html");
  for (const char* row :
       {"<th scope=\"row\">1</th><td>0.75</td>", "<th scope=\"row\">2</th><td>0.5</td>",
        "<th scope=\"row\">3</th><td>0.25</td>", "<th scope=\"row\">3</th><td>4</td>",
        "<th scope=\"row\">3</th><td>0.001</td>"})
    EXPECT_NE(page.find(row), std::string::npos) << row;
  fs::remove_all(dir);
}

// Trainer's numbers count the whole time, so the report tells the speed of the steps, too.
TEST(ReportCallback, TheSpeedIsThatOfTheSteps) {
  namespace fs = std::filesystem;
  const std::string dir = testing::TempDir() + "/speed_test_" + std::to_string(getpid());
  fs::create_directories(dir);
  TrainerState state;
  TrainerControl control;
  ReportCallback callback({.folder = dir, .title = "T", .command = ""});
  // The clock hardly moves in a test, so a negative time beside the steps stands for 1,000 s of
  // them.
  callback.OnTrainBegin({}, state, control);
  state.global_step = 1;
  state.num_input_tokens_seen = 50'000;
  state.seconds_beside_steps = -1000;
  state.Log({{"loss", 0.5}});
  callback.OnLog({}, state, control, state.log_history.back());
  state.seconds_beside_steps = 6;
  state.Log({{"train_loss", 0.5},
             {"train_runtime", 10.0},
             {"train_samples_per_second", 8.0},
             {"time_in_collectives", 2.0},
             {"time_in_collectives_hidden", 1.5},
             {"time_in_collectives_exposed", 0.5},
             {"slowest_rank", 3},
             {"slowest_rank_extra_time", 0.25}});
  callback.OnTrainEnd({}, state, control);
  const std::string page = ReadFile(dir + "/report.html");
  fs::remove_all(dir);
  const size_t figure = page.find("<figure id=\"throughput\"");
  ASSERT_NE(figure, std::string::npos);
  const std::string cell = "<th scope=\"row\">1</th><td>";
  const size_t value = page.find(cell, figure);
  ASSERT_NE(value, std::string::npos) << page.substr(figure);
  EXPECT_NEAR(std::stod(page.substr(value + cell.size())), 50, 1);
  for (const char* row :
       {"<th scope=\"row\" role=\"rowheader\">speed of the steps</th><td role=\"cell\">20 samples "
        "a second, without 6 s of "
        "evaluations and saves</td>",
        "<th scope=\"row\" role=\"rowheader\">train_samples_per_second</th><td role=\"cell\">8, "
        "evaluations and saves included</td>",
        "<th scope=\"row\" role=\"rowheader\">train_runtime</th><td role=\"cell\">10</td>",
        "<th scope=\"row\" role=\"rowheader\">cost of the ranks</th><td role=\"cell\">2 s in "
        "collectives, of which computation hid "
        "1.5 s and waited for 0.5 s; rank 3 was the slowest, by 0.25 s (2.5 % of the time)</td>"})
    EXPECT_NE(page.find(row), std::string::npos) << row << page;
}

TEST(ReportCallback, WritesOnTheMainProcessOnly) {
  namespace fs = std::filesystem;
  const std::string dir = testing::TempDir() + "/report_test_" + std::to_string(getpid());
  for (const bool is_main : {false, true}) {
    fs::create_directories(dir);
    TrainerState state;
    state.is_world_process_zero = is_main;
    state.Log({{"loss", 0.5}});
    TrainerControl control;
    ReportCallback callback({.folder = dir, .title = "T", .command = ""});
    EXPECT_FALSE(callback.SetsControl());
    callback.OnTrainBegin({}, state, control);
    callback.OnLog({}, state, control, state.log_history.back());
    EXPECT_EQ(fs::exists(dir + "/report.html"), is_main);
    callback.OnTrainEnd({}, state, control);
    EXPECT_EQ(fs::exists(dir + "/plots/loss.svg"), is_main);
    callback.AddResults({{"eval_accuracy", 0.75}},
                        {{"classes", {{{"label", "a"}}, {{"label", "b"}}}},
                         {"confusion_matrix", {{3, 1}, {0, 2}}}});
    EXPECT_EQ(fs::exists(dir + "/plots/confusion_matrix.svg"), is_main);
    if (is_main) {
      const std::string page = ReadFile(dir + "/report.html");
      EXPECT_NE(page.find("<td role=\"cell\">0.75</td>"), std::string::npos);
      EXPECT_TRUE(std::regex_search(page, std::regex("Written at 20[0-9-]+ [0-9:]{8} UTC\\.")));
    }
    fs::remove_all(dir);
  }
}

}  // namespace
}  // namespace lathe
