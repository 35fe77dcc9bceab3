// Tests how a training goes on after signals, kills and launchers' restarts, also in loops of a
// program's own.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lathe/apps/testing/resume_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

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
