// Runs the programs as a user does. Tests which options change the results, and by how much.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/base/isa.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

TEST_F(CliTest, TheSameSeedGivesTheSameBits) {
  for (const char* out : {"a", "b"}) {
    ASSERT_EQ(Train({"--output_dir", Path(out), "--max_steps", "12"}).exit_code, 0);
  }
  EXPECT_EQ(Read("a/model.safetensors"), Read("b/model.safetensors"));
  ASSERT_EQ(Train({"--output_dir", Path("c"), "--max_steps", "12", "--seed", "1"}).exit_code, 0);
  EXPECT_NE(Read("a/model.safetensors"), Read("c/model.safetensors"));
}

TEST_F(CliTest, TheSameSeedGivesTheSameBitsInBFloat16) {
  for (const char* out : {"a", "b"}) {  // heads of 32 columns, which have their own kernels
    const RunResult run = Train({"--output_dir", Path(out), "--max_steps", "12", "--bf16",
                                 "--config_overrides", "hidden_size=64,num_attention_heads=2"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  EXPECT_EQ(Read("a/model.safetensors"), Read("b/model.safetensors"));
}

TEST_F(CliTest, ThreadsAndAccumulationHardlyMatter) {
  const auto losses = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> args = {
        "--output_dir",       Path(out),
        "--max_steps",        "20",
        "--config_overrides", "hidden_dropout_prob=0,attention_probs_dropout_prob=0"};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult run = Train(args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return Losses(out);
  };
  // There are 96 samples in batches of 10. So the last window of an epoch has 6, as one batch or in
  // two parts.
  const auto one = losses("one", {"--per_device_train_batch_size", "10"});
  const auto two = losses("two", {"--per_device_train_batch_size", "10", "--num_threads", "2"});
  const auto parts =
      losses("parts", {"--per_device_train_batch_size", "5", "--gradient_accumulation_steps", "2"});
  setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2", 1);
  EXPECT_EQ(losses("environment", {"--per_device_train_batch_size", "5"}), parts);
  EXPECT_EQ(
      losses("flag", {"--per_device_train_batch_size", "10", "--gradient_accumulation_steps", "1"}),
      one);
  unsetenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  ASSERT_EQ(one.size(), 20u);
  ASSERT_EQ(two.size(), 20u);
  ASSERT_EQ(parts.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(one[i], two[i], 1e-4) << i;
    EXPECT_NEAR(one[i], parts[i], 1e-3) << i;
  }
}

// The number of threads changes neither dropout masks nor the order of samples. It changes losses
// by 1e-5 at most.
TEST_F(CliTest, ThreadsChangeNoMask) {
  for (const char* threads : {"1", "2"}) {
    ASSERT_EQ(Train({"--output_dir", Path(threads), "--max_steps", "12", "--num_threads", threads})
                  .exit_code,
              0);
  }
  const auto losses = [&](const std::string& out) { return Losses(out); };
  const auto one = losses("1"), two = losses("2");
  ASSERT_EQ(one.size(), 12u);
  ASSERT_EQ(two.size(), 12u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-5) << i;
}

TEST_F(CliTest, MixedPrecision) {
  const RunResult full = Train({"--do_eval", "--num_train_epochs", "6"});
  ASSERT_EQ(full.exit_code, 0) << full.err;
  const Json full_state = ReadJson("out/trainer_state.json");
  const RunResult run =
      Train({"--do_eval", "--num_train_epochs", "6", "--bf16", "--overwrite_output_dir"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("bf16"), std::string::npos) << run.out;
  EXPECT_GT(ReadJson("out/eval_results.json")["eval_accuracy"], 0.8);
  const Json state = ReadJson("out/trainer_state.json");
  const double first = state["log_history"][0]["loss"];
  const double full_first = full_state["log_history"][0]["loss"];
  EXPECT_NE(first, full_first);
  EXPECT_NEAR(first, full_first, 0.01);
}

TEST_F(CliTest, PredictsInBFloat16) {
  ASSERT_EQ(Train({"--num_train_epochs", "6"}).exit_code, 0);
  const auto predict = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"predict", Path("out"), "the film", "a bad film"};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("lathe", args);
  };
  const RunResult full = predict({}), narrow = predict({"--bf16"});
  ASSERT_EQ(narrow.exit_code, 0) << narrow.err;
  EXPECT_EQ(narrow.out, predict({"--mixed_precision", "bf16"}).out);
  std::istringstream full_lines(full.out), narrow_lines(narrow.out);
  std::string full_line, narrow_line;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(std::getline(full_lines, full_line) && std::getline(narrow_lines, narrow_line));
    const Json a = ParseJson(full_line), b = ParseJson(narrow_line);
    EXPECT_EQ(a["label"], b["label"]);
    EXPECT_NEAR(a["score"].get<double>(), b["score"].get<double>(), 0.02);
    EXPECT_NE(a["score"], b["score"]);
  }
  ExpectError(predict({"--bf16", "--mixed_precision", "no"}), "contradict each other", 2);
  ExpectError(predict({"--bf16", "--fp16"}), "contradict each other", 2);
  ExpectError(predict({"--mixed_precision", "fp16"}), "fp16 needs a GPU");
}

TEST_F(CliTest, SaysWhereBFloat16IsNoFaster) {
  const char* const cap = std::getenv("LATHE_MAX_ISA");
  const std::string cap_before = cap == nullptr ? "" : cap;
  for (const int highest : {3, 4}) {
    const int level = std::min(highest, cpu::IsaLevel());
    ASSERT_EQ(setenv("LATHE_MAX_ISA", std::to_string(level).c_str(), 1), 0);
    const RunResult run = Train({"--max_steps", "1", "--bf16", "--overwrite_output_dir"});
    const RunResult predict = RunProgram("lathe", {"predict", Path("out"), "the film", "--bf16"});
    ASSERT_EQ(
        cap == nullptr ? unsetenv("LATHE_MAX_ISA") : setenv("LATHE_MAX_ISA", cap_before.c_str(), 1),
        0);
    // Up to AVX2 the products of Lathe's own keep float32's speed. oneDNN's are slow in AVX-512.
    const std::string note =
        std::string("note: this processor has no bfloat16 products, so mixed ") +
        "precision bf16 is " + (level == 4 ? "slow" : "no faster than float32") + "\n";
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, note);
    ASSERT_EQ(predict.exit_code, 0) << predict.err;
    EXPECT_EQ(predict.err, note);
    EXPECT_TRUE(Json::accept(predict.out)) << predict.out;
  }
}

TEST_F(CliTest, GradientCheckpointingChangesNoBit) {
  for (const std::string precision : {"no", "bf16"}) {
    const std::string plain = "plain_" + precision, again = "again_" + precision;
    ASSERT_EQ(Train({"--mixed_precision", precision, "--output_dir", Path(plain)}).exit_code, 0);
    ASSERT_EQ(Train({"--mixed_precision", precision, "--output_dir", Path(again),
                     "--gradient_checkpointing"})
                  .exit_code,
              0);
    EXPECT_EQ(Read(plain + "/model.safetensors"), Read(again + "/model.safetensors"));
  }
}

}  // namespace
}  // namespace lathe
