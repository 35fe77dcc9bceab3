#include "lathe/train/trainer_state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

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
  read.LoadJson(json::parse(state.ToJson().dump()), "state.json");
  EXPECT_EQ(read.ToJson(), state.ToJson());
}

TEST(TrainerStateTest, AFoldersNameMayHoldAnyBytes) {
  TrainerState state;
  state.best_model_checkpoint = "mod\xe8le/checkpoint-3";
  const json saved = json::parse(state.ToText());
  EXPECT_EQ(saved.at("best_model_checkpoint"), "mod\xef\xbf\xbdle/checkpoint-3");
  state.best_model_checkpoint = "out/checkpoint-3";
  EXPECT_EQ(state.ToText(), state.ToJson().dump(2) + "\n");
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
