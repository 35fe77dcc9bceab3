// Tests what users choose about checkpoints: when to save, which to keep, how to go on. Loops of
// their own and other launchers' restarts are among it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class ResumeTest : public LaunchedTest {
 protected:
  // Returns the command line of finetune in one thread for 12 steps into `out`, with `more`.
  Args Command(const std::string& out, const Args& more) const {
    Args args = Finetune(out, {"--num_threads", "1", "--max_steps", "12"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  RunResult Run(const Args& command, const RunOptions& options = {}) const {
    return RunProgram(command[0], {command.begin() + 1, command.end()}, options);
  }
  // Returns the steps of the checkpoints in `out`, lowest first.
  std::vector<int64_t> StepsIn(const std::string& out) const {
    std::vector<int64_t> steps;
    for (const NumberedFolder& folder : ListNumberedFolders(Path(out), "checkpoint-"))
      steps.push_back(folder.number);
    return steps;
  }
};

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

// A second and a third signal come at once, and count as one with the first. Later ones are in
// checkpoint_faults_test.cc. No half of a checkpoint is left.
TEST_F(ResumeTest, SignalsInHasteLoseNothing) {
  const Args options = {"--max_steps", "400", "--save_strategy", "steps", "--save_steps", "3"};
  const RunResult run =
      Run(Command("out", options),
          {.interrupt_after = "saved " + Path("out") + "/checkpoint-6\n", .interrupts = 3});
  EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
  const CheckpointSearch search = FindNewestCheckpoint(Path("out"));
  ASSERT_TRUE(search.newest);
  EXPECT_GE(search.newest->manifest.step, 6);
  EXPECT_EQ(search.left_out, Args());
  Args resumed = options;
  resumed.push_back("--resume_from_checkpoint");
  const RunResult end = Run(Command("out", resumed));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(Contains(end.out, "after step " + std::to_string(search.newest->manifest.step) +
                                    ", from " + search.newest->path))
      << end.out;
}

// The last line of an interrupted training tells how to go on, also where the command isn't known.
TEST_F(ResumeTest, AnInterruptedTrainingTellsHowToGoOn) {
  const Args options = {"--max_steps", "4000", "--save_steps", "3"};
  std::string script;
  for (const std::string& arg : Command("out", options)) script += "'" + arg + "' ";
  Write("program.sh", script + "; exit $?\n");
  const RunOptions interrupt = {.interrupt_after = "saved " + Path("out") + "/checkpoint-6\n"};
  const RunResult launched = Launch(2, {"/bin/sh", Path("program.sh")}, interrupt);
  EXPECT_TRUE(Contains(launched.out,
                       "\nto go on, run the same command with the same launcher and 2 processes, "
                       "and add: --resume_from_checkpoint " +
                           Path("out") + "/checkpoint-"))
      << launched.out << launched.err;
  fs::remove_all(Path("out"));
  Args model_only = options;
  model_only.push_back("--save_only_model");
  const RunResult alone = Run(Command("out", model_only), interrupt);
  EXPECT_EQ(alone.exit_code, 130) << alone.err;
  EXPECT_TRUE(alone.out.ends_with("\nthere is no checkpoint to go on from\n")) << alone.out;
}

// torchrun starts the same command again. It goes on from its own job's checkpoint. It refuses the
// folder of another job.
TEST_F(ResumeTest, TorchrunsRestartGoesOnByItself) {
  const Args options = {"--max_steps", "200", "--save_strategy", "steps", "--save_steps", "5"};
  ASSERT_EQ(Run(Command("whole", options)).exit_code, 0);
  std::map<std::string, std::string> variables = {{"RANK", "0"},
                                                  {"WORLD_SIZE", "1"},
                                                  {"LOCAL_RANK", "0"},
                                                  {"LOCAL_WORLD_SIZE", "1"},
                                                  {"GROUP_RANK", "0"},
                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                  {"MASTER_PORT", std::to_string(TestPort())},
                                                  {"TORCHELASTIC_RUN_ID", "job-7"},
                                                  {"TORCHELASTIC_RESTART_COUNT", "0"}};
  const auto run = [&](const RunOptions& run_options) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    const RunResult result = Run(Command("out", options), run_options);
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
    return result;
  };
  const RunResult killed = run({.interrupt_after = "saved " + Path("out") + "/checkpoint-20\n",
                                .interrupt_signal = SIGKILL});
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.out << killed.err;
  ExpectError(run({}), "output_dir is not empty", 2);
  // Another job's checkpoint with more steps doesn't hide the own ones.
  fs::copy(Path("whole/checkpoint-150"), Path("out/checkpoint-150"), fs::copy_options::recursive);
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  const RunResult restarted = run({});
  ASSERT_EQ(restarted.exit_code, 0) << restarted.err;
  EXPECT_TRUE(Contains(restarted.out, "goes on")) << restarted.out;
  EXPECT_FALSE(Contains(restarted.out, "from " + Path("out") + "/checkpoint-150")) << restarted.out;
  EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors"));
  variables["TORCHELASTIC_RUN_ID"] = "job-8";
  ExpectError(run({}), "output_dir is not empty", 2);
  EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors"));
}

// torchrun names its jobs "none" unless it is told a name. Each shell here stands for one torchrun.
TEST_F(ResumeTest, ARestartUnderTorchrunsDefaultNameTakesNoOtherJobsCheckpoint) {
  const auto torchrun = [&](const std::string& restarts, const Args& more) {
    std::string text =
        "env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
        std::to_string(TestPort()) +
        " TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=" + restarts;
    Args options = {"--save_strategy", "steps", "--save_steps", "5"};
    options.insert(options.end(), more.begin(), more.end());
    for (const std::string& arg : Command("out", options)) text += " '" + arg + "'";
    return RunProgram("/bin/sh", {"-c", text + "; exit $?"});
  };
  const RunResult first = torchrun("0", {});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string model = Read("out/model.safetensors");
  ExpectError(torchrun("1", {"--seed", "9"}), "output_dir is not empty", 2);
  EXPECT_EQ(Read("out/model.safetensors"), model);
  const RunResult anew = torchrun("1", {"--overwrite_output_dir"});
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_FALSE(Contains(anew.out, "goes on")) << anew.out;
}

// If the ranks refuse to begin, the launcher doesn't start them again.
TEST_F(ResumeTest, TheLauncherStartsNoRefusedJobAgain) {
  const Args saves = {"--save_strategy", "steps", "--save_steps", "5"};
  ASSERT_EQ(Launch(2, Command("ex", saves)).exit_code, 0);
  const std::string model = Read("ex/model.safetensors");
  const auto expect_refused = [&](const std::string& out, const Args& more,
                                  const std::string& message) {
    Args options = saves;
    options.insert(options.end(), more.begin(), more.end());
    const RunResult run = Launch(2, Command(out, options), {}, {"--max_restarts", "3"});
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_TRUE(Contains(run.err, message)) << run.err;
    EXPECT_EQ(run.err.find("error: "), run.err.rfind("error: ")) << run.err;
    EXPECT_FALSE(Contains(run.err, "starting the job again")) << run.err;
  };
  expect_refused("ex", {"--seed", "9"}, Path("ex") + ": output_dir is not empty");
  expect_refused("ex", {"--seed", "9", "--resume_from_checkpoint"}, "seed was 42 and is 9");
  expect_refused("empty", {"--resume_from_checkpoint"}, "has no checkpoint to go on from");
  expect_refused("new", {"--resume_from_checkpoint", "nowhere"}, "there is no such checkpoint");
  expect_refused("ex", {"--resume_from_checkpoint", "checkpoint-10"},
                 "checkpoint-10: there is no such checkpoint\nhint: did you mean " + Path("ex") +
                     "/checkpoint-10? --resume_from_checkpoint takes true, for the newest "
                     "checkpoint in " +
                     Path("ex") + ", or a checkpoint's folder\n");
  EXPECT_EQ(Read("ex/model.safetensors"), model);
  EXPECT_EQ(StepsIn("ex"), (std::vector<int64_t>{5, 10, 12}));
  EXPECT_FALSE(Exists("empty/model.safetensors"));
}

// A shell between the launcher and the program is no launcher of its own.
TEST_F(ResumeTest, AJobThatIsLostBeforeItsFirstCheckpointBeginsAnewInItsFolder) {
  const Args options = {"--max_steps", "400"};
  ASSERT_EQ(Launch(1, Command("whole", options)).exit_code, 0);
  Write("lost.sh",
        "[ -z \"${TORCHELASTIC_RESTART_COUNT:-}\" ] || { \"$@\"; exit $?; }\n"
        "\"$@\" &\n"
        "until [ -e " +
            Path("out") +
            "/.lathe_job.json ] || ! kill -0 $!; do sleep 0.01; done\n"
            "echo 1 > " +
            Path("out") + "/mine; kill -9 $!; wait $!; exit 1\n");
  Args command = {"/bin/sh", Path("lost.sh")};
  const Args program = Command("out", options);
  command.insert(command.end(), program.begin(), program.end());
  const RunResult run = Launch(1, command, {}, {"--max_restarts", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(Contains(run.err, "restart 1 of 1")) << run.err;
  EXPECT_TRUE(Contains(run.out,
                       "the job was started again, and begins at the first step, as it has no "
                       "whole checkpoint\n"))
      << run.out;
  EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors"));
  EXPECT_TRUE(Exists("out/mine"));
  EXPECT_FALSE(Exists("out/.lathe_job.json"));
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

// The example is killed twice, and goes on with the bits of one that never was.
TEST_F(ResumeTest, TheExampleLoopGoesOnAfterKills) {
  ASSERT_EQ(Run(Command("start", {})).exit_code, 0);
  const std::string rows = Read("train.csv");
  const size_t header = rows.find('\n') + 1;
  std::string many = rows.substr(0, header);
  while (std::count(many.begin(), many.end(), '\n') < 2000) many += rows.substr(header);
  Write("many.csv", many);
  const auto loop = [&](const std::string& out) {
    return Args{"examples/resumable_loop", Path("start"), Path("many.csv"), Path("dev.csv"),
                Path(out)};
  };
  ASSERT_EQ(Launch(2, loop("whole")).exit_code, 0);
  for (const int state : {2, 7}) {
    const std::string kill = "\"$@\" & until [ -d " + Path("out") + "/checkpoints/checkpoint_" +
                             std::to_string(state) +
                             " ] || ! kill -0 $!; do sleep 0.002; done; kill -9 $!; wait";
    Args args = {"-c", kill, "sh", "apps/lathe/lathe", "launch", "--cpu", "--num_processes", "2"};
    const Args program = loop("out");
    args.insert(args.end(), program.begin(), program.end());
    RunProgram("/bin/bash", args);
    EXPECT_FALSE(Exists("out/model.safetensors")) << "it came to its end";
  }
  fs::copy(Path("out"), Path("alone"), fs::copy_options::recursive);
  const RunResult end = Launch(2, loop("out"));
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(Contains(end.out, "goes on after step ")) << end.out;
  EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors"));
  const RunResult alone = Launch(1, loop("alone"));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_TRUE(Contains(alone.out, "goes on after step ")) << alone.out;
}

}  // namespace
}  // namespace lathe
