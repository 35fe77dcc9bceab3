// Compares several processes, each with an emulated device of its own, with one process on one
// device.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Args = std::vector<std::string>;

class EmulatedDevicesTest : public LaunchedTest {
 protected:
  void SetUp() override {
    LaunchedTest::SetUp();
    setenv("LATHE_EMULATOR_DEVICES", "2", 1);
  }
  ~EmulatedDevicesTest() override { unsetenv("LATHE_EMULATOR_DEVICES"); }

  // Returns the command line of a training into the folder `out`.
  Args Training(const std::string& out, const Args& more) const {
    Args args = Finetune(out, {"--num_threads", "1", "--learning_rate", "2e-3"});
    args[0] = "apps/finetune/finetune_emulated";
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static RunResult LaunchOnDevices(int num_processes, const Args& program,
                                   const RunOptions& options = {}) {
    Args args = {"launch", "--num_processes", std::to_string(num_processes)};
    args.insert(args.end(), program.begin(), program.end());
    return RunProgram("lathe_emulated", args, options);
  }

  void LoseARank(const std::string& victim, int signal_number, const std::string& problem,
                 int exit_code) const;

  // Trains in one process and in two, with the same 8 samples in a batch. Numbers agree to
  // `relative`.
  void ExpectSameAsOne(const Args& more, double relative) const {
    for (const int n : {1, 2}) {
      Args args = {"--per_device_train_batch_size",
                   std::to_string(8 / n),
                   "--do_eval",
                   "--do_predict",
                   "--max_steps",
                   "14"};
      args.insert(args.end(), more.begin(), more.end());
      const RunResult run = LaunchOnDevices(n, Training(std::to_string(n), args));
      ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
      EXPECT_EQ(run.err, "");
      EXPECT_NE(run.out.find("  emulated device"), std::string::npos) << run.out;
      EXPECT_EQ(run.out.find(", one for each process") != std::string::npos, n == 2) << run.out;
    }
    const std::vector<double> one = Losses("1"), two = Losses("2");
    ASSERT_EQ(one.size(), 14u);
    ASSERT_EQ(two.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(two[i], one[i], relative * std::max(one[i], 1e-2)) << i;
    }
    EXPECT_NE(Read("1/model.safetensors"), Read("2/model.safetensors"));
    const Json of_one = ReadJson("1/eval_results.json"), of_two = ReadJson("2/eval_results.json");
    EXPECT_NEAR(of_two["eval_loss"], of_one["eval_loss"], 100 * relative);
    EXPECT_EQ(of_two["eval_samples"], of_one["eval_samples"]);
    const std::string table_of_one = Read("1/predict_results.tsv");
    const std::string table_of_two = Read("2/predict_results.tsv");
    EXPECT_EQ(std::count(table_of_two.begin(), table_of_two.end(), '\n'),
              std::count(table_of_one.begin(), table_of_one.end(), '\n'));
  }
};

TEST_F(EmulatedDevicesTest, TwoProcessesTrainAsOne) { ExpectSameAsOne({}, 1e-5); }

TEST_F(EmulatedDevicesTest, TheyAccumulateAsOne) {
  ExpectSameAsOne({"--gradient_accumulation_steps", "3", "--max_grad_norm", "0.1"}, 1e-5);
}

TEST_F(EmulatedDevicesTest, InFloat16) {
  ExpectSameAsOne({"--fp16", "--fp16_init_scale", "1e10"}, 2e-2);
  EXPECT_GT(ReadJson("2/train_results.json")["skipped_steps"], 0);
  EXPECT_EQ(ReadJson("2/train_results.json")["skipped_steps"],
            ReadJson("1/train_results.json")["skipped_steps"]);
}

TEST_F(EmulatedDevicesTest, MoreProcessesThanDevices) {
  const RunResult refused =
      LaunchOnDevices(3, Training("out", {"--device", "cuda", "--max_steps", "1"}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("error: [accelerator] ranks 0 and 2 would share the GPU 0000:00:00.0"),
            std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("hint: "), std::string::npos) << refused.err;

  const RunResult on_cpu = LaunchOnDevices(3, Training("out", {"--max_steps", "1"}));
  EXPECT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  EXPECT_TRUE(on_cpu.err.starts_with("note: all processes compute on the CPU: ranks 0 and 2 "))
      << on_cpu.err;
  EXPECT_EQ(std::count(on_cpu.err.begin(), on_cpu.err.end(), '\n'), 1) << on_cpu.err;
}

// Sends the signal to rank `victim` after 4 steps. The other rank reports `problem` and saves the
// model.
void EmulatedDevicesTest::LoseARank(const std::string& victim, int signal_number,
                                    const std::string& problem, int exit_code) const {
  Write("log", "");
  std::string script = "if [ $RANK = " + victim + " ]; then (while ! grep -q 'step 4/' " +
                       Path("log") + "; do sleep 0.1; done; kill -" +
                       std::to_string(signal_number) + " $$) & fi; exec";
  for (const std::string& arg : Training(
           "out", {"--max_steps", "1000000", "--overwrite_output_dir", "--ddp_timeout", "5"})) {
    script += " '" + arg + "'";
  }
  const RunResult run = LaunchOnDevices(2, {"sh", "-c", script}, {.stdout_path = Path("log")});
  EXPECT_EQ(run.exit_code, exit_code) << run.err;
  for (const std::string& part :
       {"can't go on: rank " + victim + problem, std::string(" training")}) {
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
  }
  EXPECT_NE(run.err.find("; the model after step "), std::string::npos) << run.err;
  const RunResult predicted =
      RunProgram("lathe_emulated", {"predict", Path("out"), "--device", "cuda", "the film"});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
}

TEST_F(EmulatedDevicesTest, AKilledRankIsNamedAndTheModelSaved) {
  for (const char* victim : {"0", "1"}) LoseARank(victim, SIGKILL, " has ended", 128 + SIGKILL);
}

TEST_F(EmulatedDevicesTest, AHangingRankIsNamedAndTheModelSaved) {
  for (const char* victim : {"0", "1"}) LoseARank(victim, SIGSTOP, " does not answer", 75);
}

// `lathe test` passes in float16 when a file says how to launch.
TEST_F(EmulatedDevicesTest, TheSelfTestPasses) {
  Write("launch.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
  const RunResult run = RunProgram("lathe_emulated", {"test", "--config_file", Path("launch.yaml"),
                                                      "--mixed_precision", "fp16"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find(": 2 processes on a GPU each"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find(" in float16, compared with 1 process on the CPU in float32"),
            std::string::npos)
      << run.out;
}

}  // namespace
}  // namespace lathe
