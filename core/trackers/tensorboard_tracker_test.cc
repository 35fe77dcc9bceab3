#include "lathe/core/trackers/tensorboard_tracker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kFile[] = "events.out.tfevents.1700000000.host.77.5";
const std::string kGolden = "tests/golden/trackers/";

class TensorBoardTrackerTest : public testing::Test {
 protected:
  TensorBoardTrackerTest() : folder_(testing::TempDir() + "/tb" + std::to_string(getpid())) {}
  ~TensorBoardTrackerTest() override { fs::remove_all(folder_); }

  // Each look at the clock finds it a quarter of a second later.
  EventOrigin Origin() {
    return {.clock = [time = 1700000000.0]() mutable { return std::exchange(time, time + 0.25); },
            .host = "host",
            .process = 77,
            .number = 5};
  }

  std::string folder_;
};

// What the tracker gets, with the times at which it looks at the clock.
struct Entry {
  Json values;
  std::optional<int64_t> step;
};
const Json kHyperparameters = {{"learning_rate", 3e-5},
                               {"seed", 42},
                               {"bf16", true},
                               {"lr_scheduler_type", "linear"},
                               {"text_columns", {"a", "b"}},
                               {"data_seed", nullptr},
                               {"model_config", {{"model_type", "bert"}, {"layers", 2}}}};
const std::vector<Entry> kEntries = {
    {{{"train/loss", 0.75}, {"train/learning_rate", 3e-5}, {"train/epoch", 0.5}}, 10},
    {{{"train/loss", 0.0}, {"train/grad_norm", 1e30}, {"best", true}}, 20},
    {{{"eval/accuracy", 0.875}, {"eval/note", "größer \u2714"}}, 20},
    {{{"rates", {{"head", 0.25}, {"body", -0.125}}}, {"nothing", nullptr}}, 300},
    {{{"without a step", 3}}, std::nullopt},
};

TEST_F(TensorBoardTrackerTest, WritesTheBytesThatTensorBoardHasRead) {
  TensorBoardTracker tracker(folder_, Origin());
  tracker.Start(kHyperparameters);
  for (const Entry& entry : kEntries) tracker.Log(entry.values, entry.step);
  tracker.Finish();
  const std::string written = ReadFile(folder_ + "/" + kFile);
  const std::string kept = testing::TempDir() + "/" + kFile;
  fs::copy_file(folder_ + "/" + kFile, kept, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(written == ReadFile(kGolden + kFile))
      << "the bytes differ; if that is meant: tests/golden/read_event_file.py " << kept;
}

// Adds the values as TensorBoard's reader gives them: [time, step, number in float32].
void AddExpected(const Json& values, const std::string& prefix, double time, int64_t step,
                 Json& scalars, Json& texts) {
  for (const auto& [name, value] : values.items()) {
    const std::string tag = prefix + name;
    if (value.is_object()) AddExpected(value, tag + "/", time, step, scalars, texts);
    if (value.is_string()) texts[tag + "/text_summary"].push_back({time, step, value});
    if (value.is_boolean()) scalars[tag].push_back({time, step, value.get<bool>() ? 1.0 : 0.0});
    if (value.is_number()) scalars[tag].push_back({time, step, value.get<float>()});
  }
}

TEST_F(TensorBoardTrackerTest, TensorBoardsReaderFindsWhatWasLogged) {
  const Json decoded = ParseJson(ReadFile(kGolden + "decoded.json"));
  EXPECT_EQ(decoded.at("file_version"), 2.0);
  EXPECT_EQ(decoded.at("start_time"), 1700000000.0);
  EXPECT_EQ(decoded.at("first_time"), 1700000000.25);
  EXPECT_EQ(decoded.at("end_status"), 1);  // STATUS_SUCCESS
  EXPECT_EQ(decoded.at("hyperparameters"), Json({{"bf16", true},
                                                 {"learning_rate", 3e-5},
                                                 {"lr_scheduler_type", "linear"},
                                                 {"seed", 42.0},
                                                 {"text_columns", "[\"a\",\"b\"]"}}));
  Json scalars, texts;
  double time = 1700000000.5;
  Json args = kHyperparameters;
  args.erase("model_config");
  texts["args/text_summary"].push_back({time, 0, DumpJson(args, 2)});
  texts["model_config/text_summary"].push_back(
      {time, 0, DumpJson(kHyperparameters.at("model_config"), 2)});
  for (const Entry& entry : kEntries) {
    time += 0.25;
    AddExpected(entry.values, "", time, entry.step.value_or(0), scalars, texts);
  }
  EXPECT_EQ(decoded.at("scalars"), scalars);
  EXPECT_EQ(decoded.at("texts"), texts);
  EXPECT_EQ(decoded.at("end_time"), time + 0.25);
}

TEST_F(TensorBoardTrackerTest, WritesAtOnceAndToANewFileEachTime) {
  TensorBoardTracker first(folder_), second(folder_);
  const auto bytes = [&] {
    size_t size = 0;
    for (const auto& file : fs::directory_iterator(folder_)) size += fs::file_size(file.path());
    return size;
  };
  first.Start(Json::object());
  const size_t begun = bytes();
  EXPECT_EQ(begun, 40u);  // the version alone
  first.Log({{"a", 1}}, 1);
  EXPECT_GT(bytes(), begun);
  second.Log({{"a", 1}}, 2);  // it needs no Start
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

TEST_F(TensorBoardTrackerTest, TakesTextsThatAreNotUtf8AndNumbersThatAreNotFinite) {
  TensorBoardTracker tracker(folder_, Origin());
  tracker.Start({{"name", "caf\xE9"}});
  tracker.Log({{"caf\xE9", std::nan("")}, {"up", std::numeric_limits<double>::infinity()}}, 1);
  const std::string written = ReadFile(folder_ + "/" + kFile);
  EXPECT_EQ(written.find("caf\xE9"), std::string::npos);
  EXPECT_NE(written.find("caf\xEF\xBF\xBD"), std::string::npos);
}

// What stands beside a list in the same entry must not be lost with it.
TEST_F(TensorBoardTrackerTest, WritesListsAsTexts) {
  const auto written = [&](const Json& values) {
    TensorBoardTracker(folder_, Origin()).Log(values, 1);
    const std::string bytes = ReadFile(folder_ + "/" + kFile);
    fs::remove_all(folder_);
    return bytes;
  };
  const auto lists = {ParseJson("[1, 2.5]"), ParseJson("[]"), ParseJson("[{\"c\": [null]}]")};
  for (const Json& list : lists) {
    const std::string bytes = written({{"a", 1}, {"b", list}, {"z", {{"in", list}, {"to", 2}}}});
    EXPECT_EQ(
        bytes,
        written({{"a", 1}, {"b", DumpJson(list)}, {"z", {{"in", DumpJson(list)}, {"to", 2}}}}));
    EXPECT_NE(bytes, written({{"a", 1}, {"b", DumpJson(list)}}));
  }
}

TEST_F(TensorBoardTrackerTest, RefusesFoldersThatAreFiles) {
  TensorBoardTracker tracker(folder_, Origin());
  tracker.Start(Json::object());
  const std::string file = folder_ + "/" + kFile;
  EXPECT_THROW(TensorBoardTracker(file).Start(Json::object()), Error);
}

}  // namespace
}  // namespace lathe
