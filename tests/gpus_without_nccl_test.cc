// Several processes with GPUs that they can't use together.
#include <gtest/gtest.h>

#include "lathe/core/device_backend.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

std::string OnDevice(const Env& env, const std::string& device) {
  return CaptureStderr([&] {
    AcceleratorOptions options = Options(env);
    options.device = device;
    EXPECT_TRUE(Accelerator(options).device().is_cpu());
  });
}

TEST(GpusWithoutNccl, AreMissedAloud) {
  const auto results = RunRanks(2, [](const Env& env) {
    EXPECT_GT(FindDeviceBackend()->Count(), 0);
    return OnDevice(env, "auto");
  });
  ExpectAllWell(results);
  EXPECT_EQ(
      results[0].said,
      "note: all processes compute on the CPU: [nccl] this program was built without CUDA and "
      "NCCL\n");
  EXPECT_EQ(results[1].said, "");
}

TEST(GpusWithoutNccl, AreRefused) {
  for (const RankResult& result :
       RunRanks(2, [](const Env& env) { return OnDevice(env, "cuda"); })) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_NE(result.said.find("built without CUDA and NCCL"), std::string::npos) << result.said;
  }
}

}  // namespace
}  // namespace lathe
