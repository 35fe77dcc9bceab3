// Tests of NCCL's groups on GPUs, skipped on machines without one. Processes of one machine use up
// to as many GPUs as it has. On emulated devices they test what a group does around NCCL, among
// real processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/cuda_handles.h"
#include "lathe/distributed/groups/nccl/nccl_devices.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/rendezvous/machine.h"
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

// Does all that a group can do, with any number of ranks, and checks the results.
std::string TryAll(const ProcessEnvironment& env) {
  const auto group = Join(env);
  if (group == nullptr) return "no NcclGroup";
  const int n = env.world_size, mine = env.rank + 1, triangle = n * (n + 1) / 2;
  EXPECT_EQ(group->rank(), env.rank);
  EXPECT_EQ(group->size(), n);

  // The last size takes several stages.
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{5000011}}) {
    std::vector<float> floats(size, static_cast<float>(mine));
    for (size_t i = 0; i < size; ++i) floats[i] += static_cast<float>(i % 7);
    group->AllReduce(floats);
    size_t wrong = 0;
    for (size_t i = 0; i < size; ++i) {
      wrong += floats[i] != static_cast<float>(triangle + n * static_cast<int>(i % 7));
    }
    EXPECT_EQ(wrong, 0u) << size;
  }
  std::vector<double> doubles = {0.5 * mine, -1.0 * mine};
  group->AllReduce(doubles, ReduceOp::kMax);
  EXPECT_EQ(doubles, (std::vector<double>{0.5 * n, -1}));
  std::vector<int64_t> whole = {mine, int64_t{1} << 40};
  group->AllReduce(whole, ReduceOp::kMin);
  EXPECT_EQ(whole, (std::vector<int64_t>{1, int64_t{1} << 40}));
  std::vector<BFloat16> halves = {BFloat16(1.5f), BFloat16(-2.0f)};
  group->AllReduce(halves);
  EXPECT_EQ(static_cast<float>(halves[0]), 1.5f * static_cast<float>(n));
  EXPECT_EQ(static_cast<float>(halves[1]), -2.0f * static_cast<float>(n));
  std::vector<float> bad = {env.rank == n - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f};
  group->AllReduce(bad);
  EXPECT_TRUE(std::isnan(bad[0]));

  for (const size_t size : {size_t{2}, size_t{3000017}}) {
    std::vector<int32_t> part(size, env.rank), all(size * n);
    part.back() = 10 * env.rank;
    group->AllGather(std::as_bytes(std::span(part)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(all[size * r], r);
      EXPECT_EQ(all[size * (r + 1) - 1], 10 * r);
    }
  }
  for (int root = 0; root < n; ++root) {
    std::vector<int32_t> from(3000017, env.rank);
    group->Broadcast(std::as_writable_bytes(std::span(from)), root);
    EXPECT_EQ(from, std::vector<int32_t>(3000017, root));
  }
  EXPECT_THROW(group->Broadcast({}, n), Error);
  group->Barrier();

  const CudaStream stream = MakeCudaStream();
  const DeviceMemory memory = MakeDeviceMemory(1000 * sizeof(float));
  float* const on_device = reinterpret_cast<float*>(memory.get());
  std::vector<float> floats(1000, static_cast<float>(mine));
  const size_t bytes = floats.size() * sizeof(float);
  cudaMemcpyAsync(on_device, floats.data(), bytes, cudaMemcpyDefault, stream.get());
  group->AllReduceDevice(on_device, floats.size(), ReduceOp::kSum, stream.get());
  group->Order(stream.get(), group->stream());
  group->AllReduceDevice(on_device, floats.size(), ReduceOp::kMax, group->stream());
  group->Order(group->stream(), stream.get());
  group->BroadcastDevice(on_device, bytes, n - 1, stream.get());
  group->WaitFor(stream.get());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // the polls have left no error behind
  cudaMemcpy(floats.data(), on_device, bytes, cudaMemcpyDefault);
  EXPECT_EQ(floats, std::vector<float>(1000, static_cast<float>(triangle)));
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
    auto server = std::make_shared<StoreServer>(env.master_addr, env.master_port, "job");
    auto store = std::make_shared<Store>(env.master_addr, env.master_port, "job", seconds(5));
    store->Set("nccl_device/1", Serialize({.host = "ghost", .uuid = "none", .visible = 1}));
    store->Set("nccl_id/1", "");
    MakeNcclGroup(0, 2, 0, server, store, seconds(5));
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
