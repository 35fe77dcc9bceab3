// Tests of NCCL's groups on GPUs, skipped on machines without one. Processes of one machine use up
// to as many GPUs as it has. On emulated devices they test what a group does around NCCL, among
// real processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/cuda_handles.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/rendezvous/machine.h"
#include "lathe/distributed/testing/check_collectives.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

#ifdef LATHE_CUDA_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif
int NumGpus() { return kEmulated ? 3 : VisibleGpus(); }

// Skips tests only on machines without a driver: a driver that is there must work.
class NcclOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (kEmulated) setenv("LATHE_EMULATOR_DEVICES", "3", 1);
    if (NumGpus() == 0 && !std::filesystem::exists("/dev/nvidiactl")) {
      GTEST_SKIP() << "no GPU here";
    }
  }
};

std::shared_ptr<NcclGroup> Join(const ProcessEnvironment& env, seconds timeout = seconds(60)) {
  return std::dynamic_pointer_cast<NcclGroup>(
      JoinProcessGroup(env, {.timeout = timeout, .backend = "nccl"}));
}

// Makes each of the collectives on device memory, on two streams, and checks the results.
void CheckDeviceCollectives(NcclGroup& group) {
  const int n = group.size(), mine = group.rank() + 1, triangle = n * (n + 1) / 2;
  const CudaStream stream = MakeCudaStream();
  const DeviceMemory memory = MakeDeviceMemory(1000 * sizeof(float));
  float* const on_device = reinterpret_cast<float*>(memory.get());
  std::vector<float> floats(1000, static_cast<float>(mine));
  const size_t bytes = floats.size() * sizeof(float);
  cudaMemcpyAsync(on_device, floats.data(), bytes, cudaMemcpyDefault, stream.get());
  group.AllReduceDevice(on_device, floats.size(), ReduceOp::kSum, stream.get());
  group.Order(stream.get(), group.stream());
  group.AllReduceDevice(on_device, floats.size(), ReduceOp::kMax, group.stream());
  group.Order(group.stream(), stream.get());
  group.WaitFor(stream.get());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // the polls have left no error behind
  cudaMemcpy(floats.data(), on_device, bytes, cudaMemcpyDefault);
  EXPECT_EQ(floats, std::vector<float>(1000, static_cast<float>(triangle)));
}

// Does all that a group can do, with any number of ranks, and checks the results.
std::string TryAll(const ProcessEnvironment& env) {
  const auto group = Join(env);
  if (group == nullptr) return "no NcclGroup";
  EXPECT_EQ(group->rank(), env.rank);
  EXPECT_EQ(group->size(), env.world_size);
  CheckCollectives(*group, 5000011);  // so many elements take several stages
  CheckDeviceCollectives(*group);
  return "";
}

void ExpectNothingSaid(const std::vector<RankResult>& results) {
  ExpectAllWell(results);
  for (const RankResult& result : results) EXPECT_EQ(result.said, "");
}

TEST_F(NcclOnGpu, OneRankDoesWhatItSays) { ExpectNothingSaid(RunRanks(1, TryAll)); }

TEST_F(NcclOnGpu, ARankOnEachGpuDoesWhatItSays) {
  if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs";
  ExpectNothingSaid(RunRanks(NumGpus(), TryAll));
}

TEST_F(NcclOnGpu, MoreRanksThanGpusAreRefused) {
  const int n = std::max(NumGpus(), 1) + 1;
  for (const RankResult& result : RunRanks(n, TryAll)) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_TRUE(
        result.said.starts_with("ranks 0 and " + std::to_string(n - 1) + " would share the GPU "))
        << result.said;
    EXPECT_EQ(result.said.find('\n'), std::string::npos) << result.said;
    EXPECT_LT(result.seconds, 50);
  }
}

// Rank 1 has sent its description, but never calls NCCL; rank 0 is inside of NCCL then.
TEST_F(NcclOnGpu, ARankThatNeverConnectsIsNamed) {
  const auto results = RunRanks(1, [](const ProcessEnvironment& env) {
    const auto [server, store] = OpenStore(env);
    store->Set("nccl_device/1", Serialize({.host = "ghost", .uuid = "none", .visible = 1}));
    store->Set("nccl_id/1", "");
    RequireNccl().make(0, 2, 0, server, store, seconds(5));
    return std::string();
  });
  EXPECT_EQ(results[0].said, "[connecting] rank 0 can't go on: rank 1 does not answer");
  EXPECT_GE(results[0].seconds, 5);
  EXPECT_LT(results[0].seconds, 40);
}

// One rank dies or hangs in the middle. The other one is inside of a collective on the device and
// names it.
TEST_F(NcclOnGpu, ADeadOrHangingRankIsNamed) {
  if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs";
  for (const bool dies : {true, false}) {
    const auto results = RunRanks(2, [dies](const ProcessEnvironment& env) {
      const auto group = Join(env, seconds(dies ? 50 : 5));
      std::vector<float> data(1000, 1);
      for (int step = 0;; ++step) {
        if (step == 3 && env.rank == 1 && dies) raise(SIGKILL);
        if (step == 3 && env.rank == 1) std::this_thread::sleep_for(seconds(30));
        group->AllReduce(data);
      }
      return std::string();
    });
    EXPECT_EQ(results[0].said, std::string("[all_reduce] rank 0 can't go on: rank 1 ") +
                                   (dies ? "has ended" : "does not answer"));
    EXPECT_LT(results[0].seconds, 40);
  }
}

}  // namespace
}  // namespace lathe
