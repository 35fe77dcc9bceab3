// Training in several processes with a GPU each, compared with one process and with the CPU. Also
// shows which rank is blamed for an error. Runs on GPUs if there are any, and on emulated ones.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lathe/core/autograd.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/reduce/reducer.h"
#include "lathe/tests/data_parallel_job.h"
#include "lathe/tests/on_devices.h"

namespace lathe {
namespace {

using Job = DataParallelJob;

// Returns the norm of the difference of all weights, relative to b's norm.
double RelativeNorm(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return a.size() == b.size() && !a.empty() ? std::sqrt(difference / norm) : NAN;
}

struct Limits {
  double losses = Emulated() ? 1e-6 : 1e-4;
  double weights = Emulated() ? 1e-5 : 1e-3;
};

void ExpectSame(const TrainingResult& a, const TrainingResult& b, const Limits& limits) {
  ExpectSameLosses(a, b, limits.losses);
  EXPECT_LT(RelativeNorm(a.weights, b.weights), limits.weights);
}

// Compares one device with several. Also compares with as many processes on the CPU, except for
// float16.
void Compare(Job job, const Limits& limits = {}) {
  job.print_weights = true;
  job.device = "cuda";
  const TrainingResult alone = TrainInProcesses(1, job);
  for (int n = 2; n <= std::min(NumDevices(), 3); ++n) {
    SCOPED_TRACE(std::to_string(n) + " processes");
    const TrainingResult many = TrainInProcesses(n, job);
    ExpectSame(many, alone, limits);
    EXPECT_NE(many.hash, alone.hash);  // if equal, only one has trained
    if (job.precision == "fp16") continue;
    Job on_cpu = job;
    on_cpu.device = "cpu";
    ExpectSame(many, TrainInProcesses(n, on_cpu), limits);
  }
}

TEST_F(OnDevices, AsOneProcessAndAsTheCpu) { Compare({.dropout = 0.2}); }

TEST_F(OnDevices, Accumulation) {
  // An epoch has 6 batches in windows of 4 and 2; the last batch is short.
  Compare({.dropout = 0.1, .accumulation = 4, .ignore_every = 3});
}

// In some steps one of three ranks has no sample.
TEST_F(OnDevices, FewerSamplesThanProcesses) {
  Compare({.dropout = 0.1, .num_samples = 11, .batch_size = 3});
}

TEST_F(OnDevices, OneBucketWithoutOverlapOrClipping) {
  Compare({.max_grad_norm = 0, .reducer = {.overlap = false}, .vocab = 100});
}

TEST_F(OnDevices, FrozenForAWhile) { Compare({.sgd = true, .freeze_at = 3}); }

TEST_F(OnDevices, BFloat16) { Compare({.precision = "bf16"}, {2e-2, 0.2}); }

TEST_F(OnDevices, CompressedGradients) {
  Compare({.reducer = {.first_bucket_bytes = 2048, .bucket_bytes = 8192, .compression = "bf16"}},
          {2e-2, 0.2});
}

// The scale is too large at first, so all ranks skip the same steps. This includes ranks without a
// sample of their own.
TEST_F(OnDevices, Float16) {
  for (const bool few : {false, true}) {
    const Job job = {.num_samples = few ? 11 : 45,
                     .batch_size = few ? 3 : 8,
                     .precision = "fp16",
                     .epochs = few ? 4 : 2,
                     .device = "cuda",
                     .init_scale = 1e9};
    const TrainingResult alone = TrainInProcesses(1, job);
    EXPECT_GT(std::stoi(alone.skipped), 2);
    EXPECT_GT(std::stoi(alone.steps), 2);
    ExpectSameLosses(TrainInProcesses(std::min(NumDevices(), 3), job), alone, 1e-2);
  }
}

// Updates on devices are not sharded so far. Asking for it changes nothing.
TEST_F(OnDevices, SharedOptimizerHasNoEffect) {
  Job job = {.epochs = 1, .device = "cuda"};
  const TrainingResult whole = TrainInProcesses(2, job);
  job.shard = true;
  EXPECT_EQ(TrainInProcesses(2, job).hash, whole.hash);
}

TEST_F(OnDevices, AutoTakesThem) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = "auto";
    const Accelerator accelerator(options);
    EXPECT_EQ(accelerator.device(), (Device{DeviceType::kCUDA, env.rank}));
    EXPECT_EQ(accelerator.distributed_type(), "MULTI_GPU");
    EXPECT_EQ(accelerator.scaler(), nullptr);
    // A second one can be made while the first lives.
    EXPECT_EQ(Accelerator(options).device(), accelerator.device());
    return std::string();
  }));
}

TEST_F(OnDevices, CollectivesOfTensors) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = "cuda";
    Accelerator accelerator(options);
    const Device device = accelerator.device();
    const float mine = static_cast<float>(env.rank + 1);
    const Tensor rows = Tensor::Full({env.rank + 1, 2}, mine, DType::kF32, device);
    const auto expect = [&](const Tensor& result, const std::vector<float>& values) {
      EXPECT_EQ(result.device(), device);
      EXPECT_EQ(result.ToVector<float>(), values);
    };
    expect(accelerator.Gather(rows), {1, 1, 2, 2, 2, 2});
    expect(accelerator.Reduce(Tensor::Full({2}, mine, DType::kF32, device), "mean"), {1.5, 1.5});
    expect(accelerator.Reduce(Tensor::Full({}, mine, DType::kBF16, device), "max").To(DType::kF32),
           {2});
    expect(accelerator.PadAcrossProcesses(rows, 0, -1),
           env.rank == 0 ? std::vector<float>{1, 1, -1, -1} : std::vector<float>{2, 2, 2, 2});
    const Tensor all = Tensor::Full({3}, mine, DType::kF32, device);
    Broadcast(accelerator.group(), all, 1);
    expect(all, {2, 2, 2});

    DataLoader loader(Data(7), {.batch_size = 5});
    accelerator.Prepare(loader);
    std::vector<float> seen;
    for (const Batch& batch : loader) {
      std::vector<float> first;
      for (int64_t i = 0; i < batch.size(); ++i) {
        first.push_back(static_cast<float>(
            batch.input_ids.data<int32_t>()[batch.cu_seqlens.data<int32_t>()[i]]));
      }
      const Tensor on_device = Tensor::FromVector(first).To(device);
      const Tensor whole = accelerator.GatherForMetrics(on_device);
      EXPECT_EQ(whole.device(), device);
      for (const float id : whole.ToVector<float>()) seen.push_back(id);
    }
    EXPECT_EQ(seen, (std::vector<float>{0, 1, 2, 3, 4, 5, 6}));
    return std::string();
  }));
}

// Ranks that start from different values go on with rank 0's. The check finds ranks that drift
// apart.
TEST_F(OnDevices, ParametersAreRank0s) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = "cuda";
    Accelerator accelerator(options);
    Layer layer(3, 2);
    layer.Initialize(1 + env.rank);
    accelerator.Prepare(layer);
    Layer of_rank_0(3, 2);
    of_rank_0.Initialize(1);
    const Tensor weight = layer.Parameters()[0].tensor;
    EXPECT_EQ(weight.device(), accelerator.device());
    EXPECT_EQ(weight.ToVector<float>(), of_rank_0.Parameters()[0].tensor.ToVector<float>());
    accelerator.CheckParametersAgree();
    if (env.rank == 1) Tensor(weight).Fill(0.5);
    EXPECT_THROW(accelerator.CheckParametersAgree(), Error);
    return std::string();
  }));
}

// An exchange includes the gradients of passes since the last exchange. Gradients that are summed
// already count once.
TEST_F(OnDevices, GradientsAccumulateByHand) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.device = "cuda";
    Accelerator accelerator(options);
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    const auto backward = [&](float slope) {
      const Tensor x = Tensor::Full({1, 1}, slope, DType::kF32, accelerator.device());
      accelerator.Backward(Mean(Mul(model.weight, x)));
    };
    const auto grad = [&] { return model.weight.grad().ToVector<float>()[0]; };
    backward(env.rank == 0 ? 2 : 4);
    EXPECT_EQ(grad(), 3);
    backward(10);
    EXPECT_EQ(grad(), 13);
    {
      const auto no_sync = accelerator.NoSync();
      backward(env.rank == 0 ? 2 : 0);
    }
    EXPECT_EQ(grad(), env.rank == 0 ? 7.5f : 6.5f);  // half of the sum so far, and its own gradient
    backward(0);
    EXPECT_EQ(grad(), 14);
    return std::string();
  }));
}

TEST_F(OnDevices, ARankThatDiesIsNamed) {
  const int n = std::min(NumDevices(), 3);
  for (const int victim : {0, n - 1}) {
    Job job = {.device = "cuda"};
    job.before_batch = [victim](int rank, int64_t step) {
      if (rank == victim && step == 4) raise(SIGKILL);
    };
    const auto results = RunRanks(n, [&](const Env& env) { return Train(env, job); });
    for (int rank = 0; rank < n; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].exit_code, 3);
      EXPECT_NE(results[rank].said.find("rank " + std::to_string(rank) + " can't go on: rank " +
                                        std::to_string(victim) + " has ended"),
                std::string::npos)
          << results[rank].said;
      EXPECT_LT(results[rank].seconds, 25);
    }
  }
}

TEST_F(OnDevices, ARankThatThrowsIsNamed) {
  Job job = {.device = "cuda"};
  job.before_batch = [](int rank, int64_t step) {
    if (rank == 1 && step == 4) throw InvalidArgument("its own mistake");
  };
  const auto results = RunRanks(2, [&](const Env& env) { return Train(env, job); });
  EXPECT_EQ(results[1].said, "its own mistake");
  EXPECT_NE(results[0].said.find("rank 0 can't go on: rank 1 has ended"), std::string::npos)
      << results[0].said;
  EXPECT_LT(results[0].seconds, 25);
}

// --- one device, one rank: the whole way through NCCL ---

TEST_F(OnOneDevice, OneRankThroughNccl) {
  for (const std::string compression : {"no", "bf16"}) {
    ExpectAllWell(RunRanks(1, [&](const Env& env) {
      UseDeterministicGemms(true);
      const auto group = std::dynamic_pointer_cast<NcclGroup>(
          JoinProcessGroup(env, {.timeout = std::chrono::seconds(60), .backend = "nccl"}));
      const Device device = {DeviceType::kCUDA, group->device()};
      std::vector<float> losses[2];
      for (const bool reduced : {false, true}) {
        Layer model(48, 40);
        model.Initialize(3);
        model.To(device);
        AdamW optimizer(model.Parameters(), {.lr = 1e-2});
        std::unique_ptr<Reducer> reducer;
        if (reduced) {
          reducer = std::make_unique<Reducer>(
              group, std::vector{optimizer.shared_arena()},
              ReducerOptions{
                  .first_bucket_bytes = 64, .bucket_bytes = 64, .compression = compression},
              std::vector<bool>{}, group);
        }
        for (int step = 1; step <= 5; ++step) {
          const auto parameters = model.Parameters();
          const Tensor x = Tensor::Full({8, 48}, 0.25 * step, DType::kF32, device);
          const Tensor y = Linear(x, parameters[0].tensor, parameters[1].tensor);
          const Tensor loss = Mean(Mul(y, y));
          if (reduced) reducer->BeforeBackward(true);
          Backward(loss);
          if (reduced) {
            const auto records =
                reducer->Finish({.loss_sum = 0.1 * step, .weight = 8, .step = step});
            EXPECT_EQ(records.size(), 1u);
            EXPECT_EQ(records[0].loss_sum, 0.1 * step);
            EXPECT_EQ(records[0].step, step);
          }
          ClipGradNorm(optimizer, 0.5);
          optimizer.Step();
          optimizer.ZeroGrad();
          losses[reduced].push_back(static_cast<float>(loss.Item()));
        }
      }
      if (compression == "no") {
        EXPECT_EQ(losses[1], losses[0]);
      }
      for (size_t i = 0; i < losses[0].size(); ++i) {
        EXPECT_NEAR(losses[1][i], losses[0][i], 2e-2 * losses[0][i]);
      }
      return std::string();
    }));
  }
}

}  // namespace
}  // namespace lathe
