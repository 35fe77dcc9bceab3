#include "lathe/train/trainer_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using nlohmann::json;

std::string ReasonOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

std::string ReasonWith(const char* key, const json& value) {
  json saved = TrainerState().ToJson();
  saved[key] = value;
  return ReasonOf([&] { TrainerState().LoadJson(saved, "state.json"); });
}

TEST(TrainerStateTest, ReadsWhatItHasWritten) {
  TrainerState state;
  state.epoch = 1.5;
  state.global_step = int64_t{1} << 60;
  state.num_input_tokens_seen = 7;
  state.best_metric = 0.25;
  state.best_global_step = 3;
  state.best_model_checkpoint = "out/checkpoint-3";
  state.Log({{"loss", 0.5}});
  TrainerState read;
  read.LoadJson(ParseJson(DumpJson(state.ToJson())), "state.json");
  EXPECT_EQ(read.ToJson(), state.ToJson());
}

TEST(TrainerStateTest, AFoldersNameMayHoldAnyBytes) {
  TrainerState state;
  state.best_model_checkpoint = "mod\xe8le/checkpoint-3";
  const json saved = ParseJson(state.ToText());
  EXPECT_EQ(saved.at("best_model_checkpoint"), "mod\xef\xbf\xbdle/checkpoint-3");
  state.best_model_checkpoint = "out/checkpoint-3";
  EXPECT_EQ(state.ToText(), DumpJson(state.ToJson(), 2) + "\n");
}

// A callback may begin with an infinite best value. JSON has no such number.
TEST(TrainerStateTest, InfiniteNumbersOfCallbacksComeBack) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string path = testing::TempDir() + "infinite_trainer_state.json";
  TrainerState state;
  state.best_metric = -kInfinity;
  state.stateful_callbacks = {{"Mine", {{"best", kInfinity}, {"losses", {0.5, std::nan("")}}}},
                              {kOwnState, {{"args", json::object()}, {"attributes", {{"a", 1}}}}}};
  WriteFileAtomically(path, state.ToText());
  const json saved = ReadTrainerState(path);
  const json& mine = saved.at("stateful_callbacks").at("Mine");
  EXPECT_EQ(mine.at("best"), kInfinity);
  EXPECT_EQ(mine.at("losses").at(0), 0.5);
  EXPECT_TRUE(std::isnan(mine.at("losses").at(1).get<double>()));
  TrainerState read;
  read.LoadJson(saved, path);
  EXPECT_EQ(read.best_metric, -kInfinity);
  json damaged = ParseJson(ReadFile(path));
  damaged["stateful_callbacks"][kOwnState]["non_finite"]["/epoch"] = "NaN";
  WriteFileAtomically(path, DumpJson(damaged));
  EXPECT_EQ(ReasonOf([&] { ReadTrainerState(path); }),
            path + ": there is no number to put back at \"/epoch\"");
}

TEST(TrainerStateTest, NumbersThatMakeNoSenseAreErrors) {
  const std::string start = "state.json: \"global_step\" must be a whole number but is ";
  EXPECT_EQ(ReasonWith("global_step", 3), "no error");
  EXPECT_EQ(ReasonWith("global_step", -1), start + "-1");
  EXPECT_EQ(ReasonWith("global_step", 0.5), start + "0.5");
  EXPECT_EQ(ReasonWith("global_step", 1e300), start + "1e+300");
  EXPECT_EQ(ReasonWith("global_step", UINT64_MAX), start + "18446744073709551615");
  EXPECT_EQ(ReasonWith("global_step", "3"), start + "\"3\"");
  EXPECT_EQ(ReasonWith("best_global_step", true),
            "state.json: \"best_global_step\" must be a whole number but is true");
  EXPECT_EQ(ReasonWith("log_history", {{"loss", 1}}),
            "state.json: \"log_history\" must be an array");
  EXPECT_TRUE(ReasonWith("epoch", "1").starts_with("state.json: "));
}

TEST(TrainerStateTest, FilesWithoutTheTrainersOwnStateAreErrors) {
  const std::string path = testing::TempDir() + "trainer_state.json";
  WriteFileAtomically(path, "[1]");
  EXPECT_EQ(ReasonOf([&] { ReadTrainerState(path); }), path + ": is no JSON object");
  for (const char* text : {R"({})", R"({"stateful_callbacks": [1]})",
                           R"({"stateful_callbacks": {"Lathe": "attributes"}})"}) {
    WriteFileAtomically(path, text);
    EXPECT_EQ(ReasonOf([&] { OwnState(ReadTrainerState(path), path); }),
              path + ": has no \"Lathe\" in \"stateful_callbacks\"");
  }
}

}  // namespace
}  // namespace lathe
