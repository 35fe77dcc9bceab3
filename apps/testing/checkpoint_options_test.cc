// Tests what users choose about checkpoints: when to save, which to keep, and with which options to
// go on.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/testing/resume_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

TEST_F(ResumeTest, SavesWhenAskedTo) {
  const std::vector<std::pair<Args, std::vector<int64_t>>> cases = {
      {{"--save_strategy", "steps", "--save_steps", "0.5"}, {6, 12}},
      {{"--save_strategy", "steps", "--save_steps", "5", "--save_total_limit", "2"}, {10, 12}},
      {{"--save_strategy", "no"}, {}},
      {{"--save_steps", "5"}, {5, 10, 12}},
      {{"--save_seconds", "1e-9", "--save_total_limit", "1"}, {12}},
      {{"--save_total_limit", "1"}, {}},
      {{"--save_strategy", "epoch", "--save_seconds", "1e-9", "--save_total_limit", "1"}, {12}}};
  for (const auto& [more, steps] : cases) {
    fs::remove_all(Path("out"));
    const RunResult run = Run(Command("out", more));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(StepsIn("out"), steps) << more[1];
    EXPECT_EQ(Contains(run.out, "--save_total_limit has nothing to limit"),
              more[0] == "--save_total_limit")
        << run.out;
  }
}

// With `best`, each evaluation that is the best so far saves, and the last one to do so is loaded.
TEST_F(ResumeTest, SavesEachBestModel) {
  const Args best = {"--save_strategy", "best", "--eval_strategy",          "steps",
                     "--eval_steps",    "8",    "--load_best_model_at_end", "--do_eval",
                     "--max_steps",     "40",   "--learning_rate",          "1e-3"};
  const RunResult run = Run(Command("out", best));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json state = ReadJson("out/trainer_state.json");
  std::vector<int64_t> improved;
  double lowest = 1e9;
  for (const nlohmann::json& entry : state.at("log_history")) {
    if (!entry.contains("eval_loss") || entry["eval_loss"].get<double>() >= lowest) continue;
    lowest = entry["eval_loss"];
    improved.push_back(entry["step"]);
  }
  EXPECT_GT(improved.size(), 1u);
  EXPECT_EQ(StepsIn("out"), improved);
  const std::string last = "out/" + CheckpointName(improved.back());
  EXPECT_EQ(state.at("best_model_checkpoint"), Path(last));
  EXPECT_EQ(Read("out/model.safetensors"), Read(last + "/model.safetensors"));
  EXPECT_EQ(ReadJson("out/eval_results.json").at("eval_loss"), lowest);
}

// Evaluations find the best step after it was saved. It stays, and trainer_state.json names it.
// The lowest or the highest loss is that of step 12, whose epoch ends there.
TEST_F(ResumeTest, KeepsTheBestModelThatWasSavedBeforeItsEvaluation) {
  std::set<int64_t> best_ones;
  for (const char* greater : {"false", "true"}) {
    fs::remove_all(Path("out"));
    const RunResult run = Run(Command(
        "out", {"--max_steps", "20", "--eval_strategy", "epoch", "--metric_for_best_model", "loss",
                "--greater_is_better", greater, "--save_steps", "1", "--save_total_limit", "2"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const nlohmann::json state = ReadJson("out/trainer_state.json");
    const int64_t best = state.at("best_global_step");
    EXPECT_EQ(state.at("best_model_checkpoint"), Path("out/" + CheckpointName(best)));
    EXPECT_EQ(StepsIn("out"), (std::vector<int64_t>{12, 20}));
    best_ones.insert(best);
  }
  EXPECT_EQ(best_ones, (std::set<int64_t>{12, 20}));
}

// JSON is UTF-8, but the output folder may have any name.
TEST_F(ResumeTest, TheOutputFolderMayHaveAnyName) {
  const std::string out = "mod\xe8le";
  const Args options = {"--save_strategy", "best", "--eval_strategy", "steps", "--eval_steps", "4"};
  const RunResult run = Run(Command(out, options));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string best = ReadJson(out + "/trainer_state.json").at("best_model_checkpoint");
  EXPECT_TRUE(Contains(best, "/mod\xef\xbf\xbdle/checkpoint-")) << best;
  ASSERT_FALSE(StepsIn(out).empty());
  Args resumed = options;
  resumed.push_back("--resume_from_checkpoint");
  const RunResult again = Run(Command(out, resumed));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(Contains(again.out, "goes on")) << again.out;
}

// The line names the checkpoint, the first difference and the way out, and nothing is trained.
TEST_F(ResumeTest, OtherOptionsAreRefusedInOneLine) {
  ASSERT_EQ(Run(Command("out", {"--save_steps", "6", "--max_steps", "6"})).exit_code, 0);
  const std::string model = Read("out/model.safetensors");
  const std::pair<Args, std::string> cases[] = {
      {{"--max_steps", "6", "--learning_rate", "2e-3"}, "learning_rate was 0.01 and is 0.002"},
      {{"--max_steps", "6", "--weight_decay", "0.5"}, "weight_decay was 0.0 and is 0.5"},
      {{"--max_steps", "6", "--freeze_layers", "embeddings"},
       "freeze_layers was not set and is embeddings"},
      {{"--max_steps", "6", "--max_seq_length", "4", "--seed", "3"},
       "max_seq_length was 128 and is 4"},
      {{}, "number of steps was 6 and is 12"}};
  for (const auto& [more, difference] : cases) {
    Args args = Command("out", more);
    args.push_back("--resume_from_checkpoint");
    const RunResult run = Run(args);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_EQ(run.err, "error: " + Path("out") + "/checkpoint-6: " + difference +
                           "\nhint: go on with the data and options of the checkpoint, or set "
                           "--resume_anyway\n");
    EXPECT_EQ(Read("out/model.safetensors"), model);
  }
  Args args = Command("out", {"--learning_rate", "2e-3", "--resume_from_checkpoint"});
  args.push_back("--resume_anyway");
  const RunResult run = Run(args);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* difference :
       {"learning_rate was 0.01 and is 0.002\n", "number of steps was 6 and is 12\n"})
    EXPECT_TRUE(Contains(run.out, std::string("resumed anyway: ") + difference)) << run.out;
}

// Evaluations that decide are a part of what decides on the results.
TEST_F(ResumeTest, OtherEvaluationsAreRefusedWhereTheyDecide) {
  const auto command = [&](const std::string& out, const Args& more) {
    Args args =
        Command(out, {"--save_steps", "6", "--eval_strategy", "steps", "--eval_steps", "3"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const Args limited = {"--resume_from_checkpoint", "true", "--max_eval_samples", "10"};
  ASSERT_EQ(Run(command("free", {})).exit_code, 0);
  EXPECT_EQ(Run(command("free", limited)).exit_code, 0);
  const Args best = {"--load_best_model_at_end"};
  ASSERT_EQ(Run(command("best", best)).exit_code, 0);
  Args changed = limited;
  changed.push_back("--load_best_model_at_end");
  const RunResult refused = Run(command("best", changed));
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_EQ(refused.err, "error: " + Path("best") +
                             "/checkpoint-12: the number of rows of the validation data was 40 and "
                             "is 10\nhint: go on with the data and options of the checkpoint, or "
                             "set --resume_anyway\n");
  changed.push_back("--resume_anyway");
  const RunResult anyway = Run(command("best", changed));
  ASSERT_EQ(anyway.exit_code, 0) << anyway.err;
  EXPECT_TRUE(Contains(anyway.out, "resumed anyway: the number of rows of the validation data"))
      << anyway.out;
}

// Another number of threads gives other last digits, so a note says so.
TEST_F(ResumeTest, AnotherNumberOfThreadsIsNoted) {
  ASSERT_EQ(Run(Command("out", {"--save_steps", "6"})).exit_code, 0);
  const std::string note =
      "the checkpoint is that of 1 thread; with another number, the last digits of sums differ\n";
  const std::string from = Path("out") + "/checkpoint-6";
  const RunResult same = Run(Command("same", {"--resume_from_checkpoint", from}));
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_FALSE(Contains(same.out, note)) << same.out;
  const RunResult more =
      Run(Command("more", {"--resume_from_checkpoint", from, "--num_threads", "2"}));
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_TRUE(Contains(more.out, note)) << more.out;
}

// A batch of 16 begins after 48 of 96 rows, not after 40. A group of parameters of its own has no
// state in the checkpoint.
TEST_F(ResumeTest, ResumeAnywayMovesThePlaceOrSaysWhatCantBeTaken) {
  ASSERT_EQ(Run(Command("out", {"--save_steps", "5"})).exit_code, 0);
  const std::string checkpoint = Path("out") + "/checkpoint-5";
  const auto resume = [&](const Args& more) {
    Args options = {"--resume_from_checkpoint", checkpoint, "--overwrite_output_dir"};
    options.insert(options.end(), more.begin(), more.end());
    return Run(Command("other", options));
  };
  const RunResult refused = resume({"--per_device_train_batch_size", "16"});
  EXPECT_EQ(refused.err, "error: " + checkpoint +
                             ": per_device_train_batch_size times processes was 8 and is 16\n"
                             "hint: set --per_device_train_batch_size 8, or set --resume_anyway\n");
  const RunResult moved = resume({"--per_device_train_batch_size", "16", "--resume_anyway"});
  ASSERT_EQ(moved.exit_code, 0) << moved.err;
  EXPECT_TRUE(Contains(moved.out,
                       "the place in the data was after 40 samples of an epoch, and is after 48, "
                       "as batches have 16 now\n"))
      << moved.out;
  EXPECT_EQ(Losses("other").size(), 12u);
  const RunResult misfit = resume({"--head_learning_rate", "0.1", "--resume_anyway"});
  EXPECT_EQ(misfit.exit_code, 2) << misfit.out;
  EXPECT_TRUE(misfit.err.starts_with("error: " + checkpoint + ": ")) << misfit.err;
  EXPECT_TRUE(misfit.err.ends_with(
      "; what has changed: head_learning_rate was not set and is 0.1\nhint: no training can go on "
      "with this change; begin a new one from the checkpoint's model: --model_name_or_path " +
      checkpoint + "\n"))
      << misfit.err;
}

}  // namespace
}  // namespace lathe
