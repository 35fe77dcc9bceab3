// Tests `lathe test` on a machine with a GPU, here the emulated device.
#include <cstdlib>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

constexpr char kGpu[] =
    "1 process on the GPU (emulated device, compute capability 9.0, 16 GiB) in ";
constexpr char kCpu[] = ", compared with 1 process on the CPU in ";

class TestCommandOnDevice : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    setenv("HF_HOME", Path("hf").c_str(), 1);
    setenv("TMPDIR", root_.c_str(), 1);
  }
  static RunResult Test(Args options) {
    options.insert(options.begin(), "test");
    return RunProgram("lathe_emulated", options);
  }
  static void ExpectWell(const RunResult& run, const std::string& compared) {
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_EQ(run.err, "");
    EXPECT_EQ(run.out.substr(0, run.out.find('\n')), "a tiny BERT, 30 steps: " + compared);
    EXPECT_TRUE(run.out.ends_with("\nall is well\n")) << run.out;
  }
};

TEST_F(TestCommandOnDevice, TrainsOnTheGpuThatThereIs) {
  const RunResult run = Test({});
  ExpectWell(run, std::string(kGpu) + "float32" + kCpu + "float32");
  EXPECT_NE(run.out.find("\nok      losses are those of the CPU: to "), std::string::npos)
      << run.out;
}

TEST_F(TestCommandOnDevice, Float16AsTheFileSays) {
  Write("fp16.yaml", "distributed_type: MULTI_GPU\nnum_processes: 1\nmixed_precision: fp16\n");
  ExpectWell(Test({"--config_file", Path("fp16.yaml")}),
             std::string(kGpu) + "float16" + kCpu + "float32");
}

TEST_F(TestCommandOnDevice, AProcessOnEachGpuThatThereIs) {
  setenv("LATHE_EMULATOR_DEVICES", "2", 1);
  ExpectWell(Test({}),
             "2 processes on a GPU each (emulated device, compute capability 9.0, 16 GiB) in "
             "float32" +
                 std::string(kCpu) + "float32");
  unsetenv("LATHE_EMULATOR_DEVICES");
}

// Several processes without a GPU for each compute on the CPU, as does the one process that they
// are compared with.
TEST_F(TestCommandOnDevice, SeveralProcessesComputeOnTheCpu) {
  for (const Args& options : {Args{"--num_processes", "2"}, Args{"--cpu"}}) {
    ExpectWell(Test(options), "2 processes on the CPU in float32" + std::string(kCpu) + "float32");
  }
  ExpectError(Test({"--num_processes", "2", "--mixed_precision", "fp16"}), "fp16 needs a GPU", 2);
  Write("two.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
  ExpectError(Test({"--config_file", Path("two.yaml")}), "2 processes but 1 GPU on this machine",
              2);
}

}  // namespace
}  // namespace lathe
