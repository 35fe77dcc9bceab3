// Tests of the NCCL backend for any machine: without CUDA, without a GPU, or with one.
// nccl_gpu_test.cc has more for machines with a GPU.
#include "lathe/distributed/groups/nccl/nccl_group.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "lathe/core/base/error.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::seconds;

bool HasNccl() {
  try {
    RequireNccl();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<RankResult> JoinRanks(int n) {
  return RunRanks(n, [](const ProcessEnvironment& env) {
    try {
      JoinProcessGroup(env, {.timeout = seconds(20), .backend = "nccl"});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(e.hint().find("gloo"), std::string::npos) << e.hint();
      throw;
    }
    return std::string();
  });
}

TEST(Backend, MustBeOneThatThereIs) {
  for (const int world_size : {1, 2}) {
    ProcessEnvironment env;
    env.world_size = world_size;
    try {
      JoinProcessGroup(env, {.backend = "mpi"});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "[process_group] backend \"mpi\" is neither gloo nor nccl");
    }
  }
}

TEST(NcclGroup, WithoutCudaItSaysSo) {
  if (HasNccl()) GTEST_SKIP() << "built with CUDA";
  for (const int n : {1, 2}) {
    for (const RankResult& result : JoinRanks(n)) {
      EXPECT_EQ(result.exit_code, 3);
      EXPECT_EQ(result.said, "[nccl] this program was built without CUDA and NCCL");
    }
  }
}

TEST(NcclGroup, WithoutADeviceItSaysSoOnEveryRank) {
  if (!HasNccl()) GTEST_SKIP() << "built without CUDA";
  // This hides the GPUs of a machine that has some.
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  for (const int n : {1, 2, 3}) {
    for (const RankResult& result : JoinRanks(n)) {
      EXPECT_EQ(result.exit_code, 3);
      EXPECT_TRUE(result.said.starts_with("no CUDA device: ")) << result.said;
      EXPECT_EQ(result.said.find('\n'), std::string::npos) << result.said;
      EXPECT_LT(result.seconds, 15);
    }
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(NcclGroup, AMeetingPointOfNcclsOwnIsRefused) {
  if (!HasNccl()) GTEST_SKIP() << "built without CUDA";
  setenv("NCCL_COMM_ID", "127.0.0.1:29500", 1);
  const auto results = RunRanks(1, [](const ProcessEnvironment& env) {
    JoinProcessGroup(env, {.timeout = seconds(20), .backend = "nccl"});
    return std::string();
  });
  unsetenv("NCCL_COMM_ID");
  EXPECT_TRUE(results[0].said.starts_with("NCCL_COMM_ID is set")) << results[0].said;
}

TEST(NcclGroup, ARankThatNeverComesIsNamed) {
  if (!HasNccl()) GTEST_SKIP() << "built without CUDA";
  const auto results = RunRanks(1, [](const ProcessEnvironment& env) {
    const auto [server, store] = OpenStore(env);
    RequireNccl().make(0, 2, 0, server, store, seconds(2));
    return std::string();
  });
  EXPECT_EQ(results[0].said, "[connecting] rank 0 can't go on: rank 1 does not answer");
  EXPECT_GE(results[0].seconds, 2);
  EXPECT_LT(results[0].seconds, 20);
}

}  // namespace
}  // namespace lathe
