#include "lathe/core/trackers/jsonl_tracker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

class JsonlTrackerTest : public testing::Test {
 protected:
  JsonlTrackerTest() : folder_(testing::TempDir() + "/jsonl" + std::to_string(getpid())) {}
  ~JsonlTrackerTest() override { std::filesystem::remove_all(folder_); }
  JsonlTracker Tracker() const {
    return JsonlTracker(folder_ + "/a/b", [] { return 1700000000.25; });
  }
  std::string Written() const { return ReadFile(folder_ + "/a/b/metrics.jsonl"); }

  std::string folder_;
};

TEST_F(JsonlTrackerTest, WritesAnObjectALine) {
  JsonlTracker tracker = Tracker();
  tracker.Start({{"seed", 42}, {"text_columns", {"a", "b"}}});
  tracker.Log({{"train/loss", 0.5}, {"train/epoch", 0.25}, {"a", "x\ny"}}, 10);
  EXPECT_EQ(
      Written(),
      "{\"time\":1700000000.25,\"hyperparameters\":{\"seed\":42,\"text_columns\":[\"a\",\"b\"]"
      "}}\n"
      "{\"step\":10,\"epoch\":0.25,\"time\":1700000000.25,\"a\":\"x\\ny\",\"train/loss\":0.5}"
      "\n");
}

TEST_F(JsonlTrackerTest, StepsAndHyperparametersMayBeMissing) {
  JsonlTracker tracker = Tracker();
  tracker.Start(nlohmann::json::object());
  EXPECT_EQ(Written(), "");
  tracker.Log({{"nan", std::nan("")}, {"name", "caf\xE9"}}, std::nullopt);
  EXPECT_EQ(Written(), "{\"time\":1700000000.25,\"name\":\"caf\xEF\xBF\xBD\",\"nan\":null}\n");
}

TEST_F(JsonlTrackerTest, GoesOnBehindALineThatWasCutOff) {
  {
    JsonlTracker tracker = Tracker();
    tracker.Log({{"a", 1}}, 1);
    tracker.Finish();
    tracker.Log({{"a", 2}}, 2);
  }
  std::ofstream(folder_ + "/a/b/metrics.jsonl", std::ios::app) << "{\"step\":3,\"ti";
  JsonlTracker again = Tracker();
  again.Log({{"a", 3}}, 3);
  EXPECT_EQ(Written(),
            "{\"step\":1,\"time\":1700000000.25,\"a\":1}\n"
            "{\"step\":2,\"time\":1700000000.25,\"a\":2}\n"
            "{\"step\":3,\"ti\n"
            "{\"step\":3,\"time\":1700000000.25,\"a\":3}\n");
}

}  // namespace
}  // namespace lathe
