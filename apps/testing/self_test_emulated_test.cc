// Tests `lathe test` on a machine with a GPU, here the emulated device.
#include <cstdlib>

#include "lathe/apps/testing/self_test_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

constexpr char kGpu[] =
    "1 process on the GPU (emulated device, compute capability 9.0, 16 GiB) in ";
constexpr char kReference[] = "1 process on the CPU in float32";

class TestCommandOnDevice : public SelfTestCommandTest {
 protected:
  TestCommandOnDevice() : SelfTestCommandTest("lathe_emulated") {}
};

TEST_F(TestCommandOnDevice, TrainsOnTheGpuThatThereIs) {
  const RunResult run = Test({});
  ExpectPassed(run, std::string(kGpu) + "float32", kReference);
  EXPECT_NE(run.out.find("\nok      losses are those of the CPU: the largest "), std::string::npos)
      << run.out;
}

TEST_F(TestCommandOnDevice, Float16AsTheFileSays) {
  Write("fp16.yaml", "distributed_type: MULTI_GPU\nnum_processes: 1\nmixed_precision: fp16\n");
  ExpectPassed(Test({"--config_file", Path("fp16.yaml")}), std::string(kGpu) + "float16",
               kReference);
}

TEST_F(TestCommandOnDevice, AProcessOnEachGpuThatThereIs) {
  setenv("LATHE_EMULATOR_DEVICES", "2", 1);
  ExpectPassed(Test({}),
               "2 processes on a GPU each (emulated device, compute capability 9.0, 16 GiB) in "
               "float32",
               kReference);
  unsetenv("LATHE_EMULATOR_DEVICES");
}

// Several processes without a GPU for each compute on the CPU, as does the one process that they
// are compared with.
TEST_F(TestCommandOnDevice, SeveralProcessesComputeOnTheCpu) {
  for (const Args& options : {Args{"--num_processes", "2"}, Args{"--cpu"}}) {
    ExpectPassed(Test(options), "2 processes on the CPU in float32", kReference);
  }
  ExpectError(Test({"--num_processes", "2", "--mixed_precision", "fp16"}), "fp16 needs a GPU", 2);
  Write("two.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
  ExpectError(Test({"--config_file", Path("two.yaml")}), "2 processes but 1 GPU on this machine",
              2);
}

}  // namespace
}  // namespace lathe
