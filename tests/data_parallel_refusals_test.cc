// Devices that several processes ask for in vain. Linked with data_parallel_on_device_test.cc.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/job/job.h"
#include "lathe/tests/on_devices.h"

namespace lathe {
namespace {

// Returns what all ranks say if they ask for `device`. They must say the same.
std::string Refusal(int n, const std::string& device,
                    const std::function<void(AcceleratorOptions&)>& prepare = nullptr) {
  const auto results = RunRanks(n, [&](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = device;
    if (prepare) prepare(options);
    Accelerator accelerator(options);
    return std::string("is there");
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_EQ(result.said, results[0].said);
    EXPECT_EQ(result.said.find('\n'), std::string::npos);
    EXPECT_LT(result.seconds, 20);
  }
  return results[0].said;
}

TEST_F(OnOneDevice, MoreProcessesThanGpus) {
  const int n = NumDevices() + 1;
  EXPECT_TRUE(Refusal(n, "cuda").starts_with("[accelerator] ranks 0 and " + std::to_string(n - 1) +
                                             " would share the GPU "));
  // With "auto" all compute on the CPU, and one line says why.
  const auto results = RunRanks(n, [](const Env& env) {
    return CaptureStderr([&] {
      AcceleratorOptions options = Options(env);
      options.device = "auto";
      const Accelerator accelerator(options);
      EXPECT_TRUE(accelerator.device().is_cpu());
      EXPECT_EQ(accelerator.distributed_type(), "MULTI_CPU");
    });
  });
  ExpectAllWell(results);
  EXPECT_TRUE(results[0].said.starts_with("note: all processes compute on the CPU: ranks 0 and " +
                                          std::to_string(n - 1) + " would share the GPU "))
      << results[0].said;
  EXPECT_EQ(std::count(results[0].said.begin(), results[0].said.end(), '\n'), 1);
  EXPECT_EQ(results[1].said, "");
}

TEST_F(OnDevices, OnlyEmulatedOnesCanBeTakenAway) {
  if (!Emulated()) GTEST_SKIP() << "needs an emulated device";
  const auto without_devices = [](AcceleratorOptions&) {
    setenv("LATHE_EMULATOR_DEVICES", "0", 1);
  };
  EXPECT_EQ(Refusal(2, "cuda", without_devices),
            "[accelerator] no CUDA device: no CUDA-capable device is detected");
  const auto without_one = [](AcceleratorOptions& options) {
    if (options.environment->rank == 1) setenv("LATHE_EMULATOR_DEVICES", "0", 1);
  };
  const std::string said = Refusal(2, "cuda", without_one);
  EXPECT_TRUE(said.starts_with("[accelerator] rank 1 (") &&
              said.ends_with("): no CUDA device: no CUDA-capable device is detected"))
      << said;
  const auto without_nccl = [](AcceleratorOptions&) { setenv("LATHE_EMULATOR_NO_NCCL", "1", 1); };
  EXPECT_EQ(Refusal(2, "cuda", without_nccl),
            "[accelerator] NCCL can't be used: it is not emulated");
  const auto without_nccl_on_one = [](AcceleratorOptions& options) {
    if (options.environment->rank == 0) setenv("LATHE_EMULATOR_NO_NCCL", "1", 1);
  };
  EXPECT_TRUE(Refusal(2, "cuda", without_nccl_on_one).starts_with("[accelerator] rank 0 ("));

  // With "auto" they compute on the CPU. There is no note if no rank has a GPU.
  for (const bool all : {true, false}) {
    const auto results = RunRanks(2, [&](const Env& env) {
      return CaptureStderr([&] {
        AcceleratorOptions options = Options(env);
        options.device = "auto";
        all ? without_devices(options) : without_one(options);
        EXPECT_TRUE(Accelerator(options).device().is_cpu());
      });
    });
    ExpectAllWell(results);
    EXPECT_EQ(results[0].said.empty(), all) << results[0].said;
    EXPECT_EQ(results[1].said, "");
  }
}

// The job has started, but one rank can't open another connection. All ranks hear of it, and none
// waits.
TEST_F(OnDevices, ARankWithoutAWayToNcclsStoreIsNamed) {
  const auto without_files = [](AcceleratorOptions& options) {
    options.timeout = std::chrono::seconds(30);
    JoinJobOnce(options.environment, options.timeout);
    DescribeRankDevice(options.environment->rank);
    if (options.environment->rank != 1) return;
    const rlimit limit = {3, 3};  // files that are open already stay open
    setrlimit(RLIMIT_NOFILE, &limit);
  };
  const std::string said = Refusal(2, "cuda", without_files);
  EXPECT_TRUE(said.starts_with("[nccl] rank 1: ") &&
              said.find("Too many open files") != std::string::npos)
      << said;
}

// If a rank hangs, the timeout counts from the beginning of the hang, even if the other rank first
// computes by itself for a while.
TEST_F(OnDevices, AHangIsCountedFromItsBeginning) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = "cuda";
    options.timeout = std::chrono::seconds(8);
    Accelerator accelerator(options);
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    const auto step = [&] {
      const Tensor x = Tensor::Full({1, 1}, 1, DType::kF32, accelerator.device());
      accelerator.Backward(Mean(Mul(model.weight, x)));
      optimizer.Step();
      accelerator.last_loss();
    };
    step();
    if (env.rank == 1) raise(SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::seconds(6));
    try {
      step();
    } catch (const Error& e) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8 + 3));
      kill(0, SIGCONT);
      return e.message();
    }
    return std::string("all well");
  });
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_NE(results[0].said.find("rank 1 does not answer while training"), std::string::npos)
      << results[0].said;
}

TEST_F(OnDevices, WishesMustMakeSense) {
  EXPECT_EQ(Refusal(2, "cuda:1"),
            "[accelerator] device cuda:1 is one GPU but there are 2 processes");
  EXPECT_EQ(Refusal(2, "gpu"), "[device] unknown device \"gpu\"");
  EXPECT_EQ(Refusal(2, "",
                    [](AcceleratorOptions& options) {
                      options.device = options.environment->rank == 0 ? "cuda" : "cpu";
                    }),
            "[preflight] rank 1 has device cpu but rank 0 has device cuda");
}

TEST_F(OnDevices, ParametersElsewhereAreRefused) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = "cuda";
    Accelerator accelerator(options);
    Slope model, other;
    model.Initialize(1);
    other.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1}), of_other(other.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer, of_other);
    const Tensor x = Tensor::Full({1, 1}, 1, DType::kF32, accelerator.device());
    accelerator.Backward(Mean(Mul(model.weight, x)));
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.said.starts_with("[reducer] some parameters lie on cuda:") &&
                result.said.ends_with(" and some on cpu; Prepare all models"))
        << result.said;
  }
}

}  // namespace
}  // namespace lathe
