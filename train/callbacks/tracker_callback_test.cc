#include "lathe/train/callbacks/tracker_callback.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class TrackerCallbackTest : public testing::Test {
 protected:
  TrackerCallbackTest() : folder_(testing::TempDir() + "/tracker" + std::to_string(getpid())) {
    unsetenv("TENSORBOARD_LOGGING_DIR");
    arguments_.output_dir = folder_;
    arguments_.logging_dir = folder_ + "/logs";
    arguments_.report_to = {"jsonl"};
    state_.global_step = 4;
  }
  ~TrackerCallbackTest() override { fs::remove_all(folder_); }

  void Train(TrackerCallback& callback) {
    callback.OnTrainBegin(arguments_, state_, control_);
    callback.OnLog(arguments_, state_, control_, {{"loss", 0.5}, {"epoch", 0.25}, {"step", 4}});
    callback.OnLog(arguments_, state_, control_, {{"eval_f1", 0.75}, {"epoch", 0.25}, {"step", 4}});
    callback.OnTrainEnd(arguments_, state_, control_);
  }
  // Returns the lines of the file, without the time.
  std::vector<Json> Lines(const std::string& folder) const {
    std::vector<Json> lines;
    std::ifstream in(folder + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      lines.push_back(ParseJson(line));
      lines.back().erase("time");
    }
    return lines;
  }

  std::string folder_;
  TrainingArguments arguments_;
  TrainerState state_;
  TrainerControl control_;
};

TEST(TrackedValues, HasTheNamesOfTransformers) {
  EXPECT_EQ(TrackedValues({{"loss", 1},
                           {"train_loss", 2},
                           {"epoch", 3},
                           {"step", 4},
                           {"eval_loss", 5},
                           {"eval_samples_per_second", 6},
                           {"test_f1", 7}}),
            Json({{"train/loss", 1},
                  {"train/train_loss", 2},
                  {"train/epoch", 3},
                  {"eval/loss", 5},
                  {"eval/samples_per_second", 6},
                  {"test/f1", 7}}));
}

TEST_F(TrackerCallbackTest, ReportsLogsAndEvaluations) {
  TrackerCallback callback(Json{{"seed", 7}});
  Train(callback);
  EXPECT_EQ(Lines(folder_ + "/logs"),
            (std::vector<Json>{{{"hyperparameters", {{"seed", 7}}}},
                               {{"step", 4}, {"epoch", 0.25}, {"train/loss", 0.5}},
                               {{"step", 4}, {"epoch", 0.25}, {"eval/f1", 0.75}}}));
  EXPECT_TRUE(control_.warnings.empty());
  EXPECT_FALSE(callback.SetsControl());
}

TEST_F(TrackerCallbackTest, AnotherTrainingAndALaterEvaluationGoOn) {
  TrackerCallback first(Json{{"seed", 7}}), second;
  Train(first);
  EXPECT_TRUE(first.LogEvaluation(arguments_, 4, {{"eval_f1", 1.0}, {"epoch", 0.25}}).empty());
  state_.global_step = 8;
  arguments_.learning_rate = 0.5;
  Train(second);
  const std::vector<Json> lines = Lines(folder_ + "/logs");
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[3], Json({{"step", 4}, {"epoch", 0.25}, {"eval/f1", 1.0}}));
  EXPECT_EQ(lines[4].at("hyperparameters").at("learning_rate"), 0.5);
  EXPECT_EQ(lines[5].at("step"), 8);
}

TEST_F(TrackerCallbackTest, WritesNothingUnlessItIsAskedToAndOnTheMainProcess) {
  arguments_.report_to = {"none"};
  TrackerCallback none;
  Train(none);
  arguments_.report_to = {"all"};
  state_.is_world_process_zero = false;
  TrackerCallback other;
  Train(other);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(TrackerCallbackTest, FindsItsFolder) {
  arguments_.logging_dir = "";
  TrackerCallback in_output;
  Train(in_output);
  const fs::path runs = folder_ + "/runs";
  ASSERT_TRUE(fs::exists(runs));
  const fs::path run = fs::directory_iterator(runs)->path();
  // Such as Nov26_10-22-29_host.
  EXPECT_TRUE(
      std::regex_match(run.filename().string(), std::regex("[A-Z][a-z]{2}[0-9]{2}_[0-9-]{8}_.+")))
      << run;
  EXPECT_EQ(Lines(run.string()).size(), 3u);
  setenv("TENSORBOARD_LOGGING_DIR", (folder_ + "/environment").c_str(), 1);
  TrackerCallback in_environment;
  Train(in_environment);
  EXPECT_EQ(Lines(folder_ + "/environment").size(), 3u);
  unsetenv("TENSORBOARD_LOGGING_DIR");
}

TEST_F(TrackerCallbackTest, AFolderThatCannotBeMadeIsOneWarning) {
  fs::create_directories(folder_);
  std::ofstream(arguments_.logging_dir) << "x";
  arguments_.report_to = {"tensorboard", "jsonl"};
  TrackerCallback callback;
  Train(callback);
  ASSERT_EQ(control_.warnings.size(), 1u);
  EXPECT_EQ(control_.warnings[0],
            "warning: tensorboard and jsonl can't start: " + arguments_.logging_dir +
                ": Not a directory; training goes on without it");
}

}  // namespace
}  // namespace lathe
