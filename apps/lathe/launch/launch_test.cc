// Runs `lathe launch` and `lathe env` as a user does.
#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

class LaunchTest : public CliTest {
 protected:
  // Runs `script` in ranks on the CPU, even if the machine has GPUs.
  RunResult Launch(Args options, const std::string& script, const RunOptions& run = {}) const {
    options.insert(options.begin(), {"launch", "--cpu"});
    options.insert(options.end(), {"sh", "-c", script});
    return RunProgram("lathe", options, run);
  }
};

TEST_F(LaunchTest, TellsRanksWhatTheOptionsSay) {
  const RunResult run =
      Launch({"--num-processes", "2", "--num_cpu_threads_per_process=3", "--mixed_precision",
              "bf16", "--timeout", "7", "--heartbeat_timeout", "5", "--port_range", "7-9"},
             "echo $RANK of $WORLD_SIZE, $OMP_NUM_THREADS, $ACCELERATE_MIXED_PRECISION, "
             "$ACCELERATE_USE_CPU, $LATHE_TIMEOUT, $LATHE_HEARTBEAT_TIMEOUT, $LATHE_PORT_RANGE");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(SortedLines(run.out),
            (Args{"0 of 2, 3, bf16, 1, 7, 5, 7-9", "1 of 2, 3, bf16, 1, 7, 5, 7-9"}));
  EXPECT_EQ(run.err, "");
}

TEST_F(LaunchTest, OneProcessOnTheCpuUnlessMoreAreAskedFor) {
  const RunResult run = Launch({}, "echo $WORLD_SIZE, ${ACCELERATE_MIXED_PRECISION-not set}");
  EXPECT_EQ(run.out, "1, not set\n") << run.err;
}

TEST_F(LaunchTest, EveryMachineHasItsShareOfTheRanks) {
  const RunResult run = Launch({"--num_processes", "6", "--num_machines", "2", "--machine_rank",
                                "1", "--main_process_ip", "10.1.2.3"},
                               "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, "
                               "$MASTER_ADDR:$MASTER_PORT");
  EXPECT_EQ(SortedLines(run.out),
            (Args{"3 of 6, 0 of 3, 10.1.2.3:29500", "4 of 6, 1 of 3, 10.1.2.3:29500",
                  "5 of 6, 2 of 3, 10.1.2.3:29500"}))
      << run.err;
}

TEST_F(LaunchTest, TheProgramKeepsItsArguments) {
  for (const bool dashes : {false, true}) {
    Args args = {"launch", "--cpu"};
    if (dashes) args.push_back("--");
    args.insert(args.end(), {"sh", "-c", "echo \"$@\"", "sh", "--help", "-h", "--num_processes",
                             "9", "--", "true"});
    const RunResult run = RunProgram("lathe", args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, "--help -h --num_processes 9 -- true\n");
  }
  // `true` is the program here, not a value of --cpu.
  EXPECT_EQ(RunProgram("lathe", {"launch", "--cpu", "true"}).exit_code, 0);
  EXPECT_EQ(RunProgram("lathe", {"launch", "--cpu", "false"}).exit_code, 1);
}

TEST_F(LaunchTest, EndsWithTheCodeOfTheFirstThatFails) {
  const RunResult run =
      Launch({"--num_processes", "2"}, "test $RANK = 1 && exit 7; sleep 0.3; echo gone; exit 1");
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_EQ(run.out, "gone\n");
  EXPECT_TRUE(run.err.starts_with("lathe launch: rank 1 (process ")) << run.err;
  EXPECT_TRUE(run.err.ends_with(") ended with exit code 7\n")) << run.err;
}

TEST_F(LaunchTest, TagsLines) {
  const RunResult run =
      Launch({"--num_processes", "2", "--tag_output"}, "echo out; printf err >&2");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(SortedLines(run.out), (Args{"[0] out", "[1] out"}));
  EXPECT_EQ(SortedLines(run.err), (Args{"[0] err", "[1] err"}));
}

TEST_F(LaunchTest, PassesSignalsOn) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    const RunResult run =
        Launch({"--num_processes", "2", "--tag_output"},
               "trap 'echo saved; exit 0' INT TERM; echo ready; while :; do sleep 0.05; done",
               {.interrupt_after = "[1] ready", .interrupt_signal = signal_number});
    EXPECT_EQ(run.exit_code, 128 + signal_number);
    EXPECT_NE(run.out.find("[1] saved"), std::string::npos) << run.out;
  }
}

// A process that has left the job tells when the launcher pauses, for 3.2 s after the sixth start.
TEST_F(LaunchTest, ASignalEndsThePauseBeforeARestart) {
  const RunResult run =
      Launch({"--max_restarts", "9"},
             "n=${TORCHELASTIC_RESTART_COUNT:-0}; echo start $n; if test $n = 5; then "
             "setsid -f sh -c 'sleep 0.7; echo it pauses'; sleep 0.2; fi; exit 3",
             {.interrupt_after = "it pauses\n", .interrupt_signal = SIGTERM});
  EXPECT_EQ(run.exit_code, 128 + SIGTERM) << run.err;
  EXPECT_TRUE(run.out.ends_with("start 5\nit pauses\n")) << run.out;
  EXPECT_TRUE(
      run.err.ends_with("restart 6 of 9\nlathe launch: signal 15 (Terminated) came before that, "
                        "so the job is not started again\n"))
      << run.err;
}

TEST_F(LaunchTest, InputIsForTheFirstProcess) {
  const RunResult run =
      Launch({"--num_processes", "2"}, "sed s/^/$RANK:/", {.input = "one\ntwo\n"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "0:one\n0:two\n");
}

TEST_F(LaunchTest, SeveralThatMpirunHasStarted) {
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  ExpectError(Launch({"--num_processes", "2"}, "echo started"),
              "Open MPI has started 2 copies of this launcher");
  EXPECT_EQ(Launch({"--num_processes", "2", "--num_machines", "2", "--main_process_ip", "127.0.0.1",
                    "--main_process_port", std::to_string(TestPort())},
                   "echo started")
                .out,
            "started\n");
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

TEST_F(LaunchTest, BadOptionsGetOneLine) {
  const std::pair<Args, std::string> cases[] = {
      {{}, "PROGRAM is missing"},
      {{"--num_processes", "2"}, "PROGRAM is missing"},
      {{"--num_processes", "0", "true"}, "--num_processes must be at least 1 but is \"0\""},
      {{"--num_processes", "two", "true"}, "--num_processes must be a whole number"},
      {{"--nmu_processes", "2", "true"}, "unknown option --nmu_processes"},
      {{"-q", "true"}, "unknown option -q"},
      {{"--mixed_precision", "fp8", "true"}, "--mixed_precision must be one of no, bf16, fp16"},
      {{"--mixed_precision", "fp16", "true"},
       "mixed_precision fp16 needs a GPU, but the processes use the CPU"},
      {{"--main_process_port", "65536", "true"}, "--main_process_port must be at most 65535"},
      {{"--timeout", "0", "true"}, "--timeout must be at least 1 but is \"0\""},
      {{"--heartbeat_timeout", "0", "true"}, "--heartbeat_timeout must be at least 1 but is \"0\""},
      {{"--port_range", "20-10", "true"},
       "--port_range must be two ports from 1 to 65535 such as 20000-20100 but is \"20-10\""},
      {{"--machine_rank", "1", "true"}, "machine_rank must be from 0 to 0 but is 1"},
      {{"--num_machines", "2", "--main_process_ip", "localhost", "--num_processes", "3", "true"},
       "num_processes is 3, which 2 machines can't share evenly"},
      {{"--num_machines", "2", "--num_processes", "2", "true"}, "--main_process_ip is missing"},
  };
  for (auto [args, message] : cases) {
    args.insert(args.begin(), {"launch", "--cpu"});
    ExpectError(RunProgram("lathe", args), message, 2);
  }
  const int gpus = VisibleGpus();
  if (gpus > 0) {
    ExpectError(
        RunProgram("lathe", {"launch", "--num_processes", std::to_string(gpus + 1), "true"}),
        "on this machine", 2);
  }
}

TEST_F(LaunchTest, WhatCannotStartGetsOneLine) {
  const std::pair<Args, std::string> cases[] = {
      {{"no-such-program"}, "there is no program \"no-such-program\" in PATH"},
      {{Path("train.csv")}, "train.csv is not executable"},
      {{Path("model")}, "model is a folder, not a program"},
      {{"--config_file", Path("nothing"), "true"}, "nothing: No such file or directory"},
      {{"--main_process_ip", "no.such.host.invalid", "true"}, "no.such.host.invalid"},
  };
  for (auto [args, message] : cases) {
    args.insert(args.begin(), {"launch", "--cpu", "--num_processes", "2"});
    ExpectError(RunProgram("lathe", args), message, 1);
  }
  ExpectError(RunProgram("lathe", {"lanch", "true"}), "unknown command \"lanch\"", 2);
}

TEST_F(LaunchTest, FlagsGoBeforeTheFile) {
  Write("two.yaml",
        "distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: bf16\ndebug: true\n");
  const std::string print =
      "echo $WORLD_SIZE $ACCELERATE_MIXED_PRECISION $ACCELERATE_USE_CPU $ACCELERATE_DEBUG_MODE";
  const auto launch = [&](Args options) {
    options.insert(options.begin(), {"launch", "--config_file", Path("two.yaml")});
    options.insert(options.end(), {"sh", "-c", print});
    const RunResult run = RunProgram("lathe", options);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return SortedLines(run.out);
  };
  EXPECT_EQ(launch({}), (Args{"2 bf16 1 1", "2 bf16 1 1"}));
  EXPECT_EQ(launch({"--num_processes", "1", "--mixed_precision", "no"}), Args{"1 no 1 1"});
}

TEST_F(LaunchTest, OneMachineOfSeveralInTheFile) {
  Write("several.yaml",
        "distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 2\nmachine_rank: 1\n"
        "main_process_ip: 10.1.2.3\nmain_process_port: 29511\n");
  const std::string print = "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT";
  const std::string file = Path("several.yaml");
  EXPECT_EQ(SortedLines(Launch({"--config_file", file}, print).out),
            (Args{"2 of 4 at 10.1.2.3:29511", "3 of 4 at 10.1.2.3:29511"}));
  // On one machine, the machine_rank in the file is ignored.
  const RunResult alone = Launch({"--config_file", file, "--num_machines", "1", "--num_processes",
                                  "1", "--main_process_port", "0"},
                                 print);
  EXPECT_TRUE(alone.out.starts_with("0 of 1 at 127.0.0.1:")) << alone.out << alone.err;
}

TEST_F(LaunchTest, EnvDescribesTheSetUp) {
  setenv("OMP_NUM_THREADS", "1", 1);
  setenv("HF_TOKEN", "secret", 1);
  RunResult run = RunProgram("lathe", {"env"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* part :
       {"- Lathe: ", "- Instruction set: x86-64-v", "- Devices: CPU",
        "- oneDNN: ", "    OMP_NUM_THREADS=1\n", "default_config.yaml (not there)"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << " is missing in\n" << run.out;
  }
  EXPECT_EQ(run.out.find("secret"), std::string::npos);
  // A program with CUDA prints the version of each library, or why it is missing.
  if (run.out.find("without CUDA") == std::string::npos) {
    for (const char* library : {"cuBLASLt ", "cuDNN ", "NCCL "}) {
      const std::string line = std::string("- Library for GPUs: ") + library;
      const std::string none = std::string("- Library for GPUs: no ") + library;
      const std::string missing = none.substr(0, none.size() - 1) + ": ";
      EXPECT_TRUE(run.out.find(line) != std::string::npos ||
                  run.out.find(missing) != std::string::npos)
          << library << "is missing in\n"
          << run.out;
    }
  } else {
    EXPECT_EQ(run.out.find("Library for GPUs"), std::string::npos) << run.out;
  }
  unsetenv("HF_TOKEN");
  unsetenv("OMP_NUM_THREADS");

  // `lathe env` in ranks shows the variables that the launcher sets.
  run = RunProgram("lathe", {"launch", "--cpu", "--num_processes", "2", "apps/lathe/lathe", "env"});
  for (const char* part : {"    RANK=0\n", "    RANK=1\n", "    ACCELERATE_USE_CPU=1\n"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << " is missing in\n" << run.out;
  }
  ExpectError(RunProgram("lathe", {"env", "all"}), "unknown argument \"all\"", 2);
}

}  // namespace
}  // namespace lathe
