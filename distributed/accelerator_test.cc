// Tests the Accelerator with several ranks. tests/data_parallel_test.cc compares whole training
// runs.
#include "lathe/distributed/accelerator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "lathe/core/base/gemm_options.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

class Processes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Numbers, Processes, testing::Values(1, 2, 3));

TEST_P(Processes, Properties) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [n](const Env& env) {
    Accelerator accelerator(Options(env));
    EXPECT_EQ(accelerator.num_processes(), n);
    EXPECT_EQ(accelerator.process_index(), env.rank);
    EXPECT_EQ(accelerator.local_process_index(), env.rank);
    EXPECT_EQ(accelerator.local_main_process_index(), 0);
    EXPECT_EQ(accelerator.is_main_process(), env.rank == 0);
    EXPECT_EQ(accelerator.is_local_main_process(), env.rank == 0);
    EXPECT_EQ(accelerator.is_last_process(), env.rank == n - 1);
    EXPECT_EQ(accelerator.use_distributed(), n > 1);
    EXPECT_EQ(accelerator.distributed_type(), n > 1 ? "MULTI_CPU" : "NO");
    EXPECT_TRUE(accelerator.sync_gradients());
    int ran = 0;
    accelerator.OnMainProcess([&] { ran += 1; });
    accelerator.OnLastProcess([&] { ran += 2; });
    accelerator.OnProcess(1, [&] { ran += 4; });
    accelerator.OnLocalMainProcess([&] { ran += 8; });
    accelerator.OnLocalProcess(1, [&] { ran += 16; });
    EXPECT_EQ(ran,
              (env.rank == 0 ? 9 : 0) + (env.rank == n - 1 ? 2 : 0) + (env.rank == 1 ? 20 : 0));
    Slope model;
    EXPECT_EQ(&accelerator.UnwrapModel(model), &model);
    Accelerator again(Options(env));  // shares the group
    EXPECT_EQ(&again.group(), &accelerator.group());
    return std::string();
  }));
}

TEST_P(Processes, CollectivesOfTensors) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [n](const Env& env) {
    Accelerator accelerator(Options(env));
    const int64_t own = env.rank;
    // Gather returns rows in the order of ranks, however many each rank has.
    const Tensor rows = Tensor::Full({own, 2}, static_cast<double>(own), DType::kI64);
    const Tensor all = accelerator.Gather(rows);
    EXPECT_EQ(all.shape(), (Shape{n * (n - 1) / 2, 2}));
    std::vector<int64_t> expected;
    for (int64_t r = 0; r < n; ++r) expected.insert(expected.end(), static_cast<size_t>(2 * r), r);
    EXPECT_EQ(all.ToVector<int64_t>(), expected);
    EXPECT_EQ(accelerator.Gather(Tensor::Full({}, 1.0)).shape(), Shape{n});

    const Tensor mine = Tensor::FromVector<float>({1, static_cast<float>(own)});
    const float sum = static_cast<float>(n * (n - 1) / 2), count = static_cast<float>(n);
    EXPECT_EQ(accelerator.Reduce(mine).ToVector<float>(), (std::vector<float>{count, sum}));
    EXPECT_EQ(accelerator.Reduce(mine, "max").ToVector<float>(),
              (std::vector<float>{1, count - 1}));
    EXPECT_FLOAT_EQ(accelerator.Reduce(mine, "mean").data<float>()[1], sum / count);
    EXPECT_EQ(mine.ToVector<float>(), (std::vector<float>{1, static_cast<float>(own)}));
    EXPECT_EQ(accelerator.Reduce(Tensor::FromVector<int32_t>({7})).ToVector<int32_t>(),
              std::vector<int32_t>{7 * n});

    const Tensor wide = Tensor::Full({2, own + 1}, 5.0);
    const Tensor padded = accelerator.PadAcrossProcesses(wide, 1, -1);
    EXPECT_EQ(padded.shape(), (Shape{2, n}));
    for (int64_t i = 0; i < 2 * n; ++i)
      EXPECT_EQ(padded.data<float>()[i], i % n <= own ? 5 : -1) << i;
    const Tensor first = accelerator.PadAcrossProcesses(wide, 1, -1, true);
    for (int64_t i = 0; i < 2 * n; ++i)
      EXPECT_EQ(first.data<float>()[i], i % n >= n - 1 - own ? 5 : -1) << i;
    EXPECT_EQ(accelerator.PadAcrossProcesses(wide, -1, -1).ToVector<float>(),
              padded.ToVector<float>());
    for (const int dim : {3, -4})
      EXPECT_EQ(accelerator.PadAcrossProcesses(mine, dim).shape(), mine.shape());

    const auto names = accelerator.GatherObject(std::string(static_cast<size_t>(own), 'x'));
    for (size_t r = 0; r < names.size(); ++r) EXPECT_EQ(names[r], std::string(r, 'x'));
    return std::string();
  }));
}

TEST_P(Processes, SplitBetweenProcesses) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [n](const Env& env) {
    Accelerator accelerator(Options(env));
    for (int size = 0; size < 8; ++size) {
      std::vector<int> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      const auto part = accelerator.SplitBetweenProcesses(all);
      const auto padded = accelerator.SplitBetweenProcesses(all, true);
      EXPECT_EQ(std::ssize(part), size / n + (env.rank < size % n ? 1 : 0));
      EXPECT_EQ(std::ssize(padded), size == 0 ? 0 : (size + n - 1) / n);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), padded.begin()));
      const Tensor whole = accelerator.Gather(
          Tensor::FromVector(std::vector<int64_t>(part.begin(), part.end()), {std::ssize(part)}));
      EXPECT_EQ(whole.ToVector<int64_t>(), std::vector<int64_t>(all.begin(), all.end()));
    }
    return std::string();
  }));
}

TEST_P(Processes, GatherForMetricsGivesEverySampleOnceInOrder) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [](const Env& env) {
    Accelerator accelerator(Options(env));
    for (int64_t size = 1; size <= 11; ++size) {
      DataLoader loader(Data(size), {.batch_size = 4});
      accelerator.Prepare(loader);
      std::vector<int64_t> seen;
      for (const Batch& batch : loader) {
        const Tensor all = accelerator.GatherForMetrics(Tensor::FromVector(batch.indices));
        EXPECT_EQ(all.numel(), batch.share->global_size);
        for (const int64_t i : all.ToVector<int64_t>()) seen.push_back(i);
      }
      std::vector<int64_t> expected(static_cast<size_t>(size));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(seen, expected);
    }
    EXPECT_THROW(accelerator.GatherForMetrics(Tensor::Zeros({4})), Error);  // outside of a loop
    return std::string();
  }));
}

// Each machine has a local main process: ranks 0 and 2 here.
TEST(Accelerator, MainProcessesOfMachines) {
  const auto results = RunRanks(4, [](const Env& env) {
    Env placed = env;
    placed.local_rank = env.rank % 2;
    placed.local_world_size = 2;
    Accelerator accelerator(Options(placed));
    EXPECT_EQ(accelerator.local_main_process_index(), env.rank / 2 * 2);
    std::string ran;
    accelerator.OnLocalMainProcess([&] { ran = "machine"; });
    accelerator.OnMainProcess([&] { ran += " all"; });
    return ran;
  });
  ExpectAllWell(results);
  const std::vector<std::string> expected = {"machine all", "", "machine", ""};
  for (size_t rank = 0; rank < expected.size(); ++rank)
    EXPECT_EQ(results[rank].said, expected[rank]);
}

TEST(Accelerator, ANaNStaysInMaximaWhoeverHasIt) {
  for (const int victim : {0, 1, 2}) {
    ExpectAllWell(RunRanks(3, [victim](const Env& env) {
      Accelerator accelerator(Options(env));
      const float mine = env.rank == victim ? NAN : static_cast<float>(env.rank);
      for (const char* reduction : {"max", "min", "sum", "mean"}) {
        const Tensor all = accelerator.Reduce(Tensor::FromVector<float>({mine}), reduction);
        EXPECT_TRUE(std::isnan(all.Item())) << reduction;
      }
      return std::string();
    }));
  }
}

TEST(Accelerator, PrepareGivesAllTheMainProcessesValues) {
  const auto results = RunRanks(3, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Layer layer(3, 2);
    layer.Initialize(static_cast<uint64_t>(env.rank));
    accelerator.Prepare(layer);
    std::string text;
    for (const Parameter& p : layer.Parameters())
      for (const float v : p.tensor.values<float>()) text += std::to_string(v) + " ";
    return text;
  });
  ExpectAllWell(results);
  EXPECT_EQ(results[1].said, results[0].said);
  EXPECT_EQ(results[2].said, results[0].said);
}

TEST_P(Processes, Triggers) {
  ExpectAllWell(RunRanks(GetParam(), [](const Env& env) {
    Accelerator accelerator(Options(env));
    EXPECT_FALSE(accelerator.CheckTrigger());
    if (accelerator.is_last_process()) accelerator.SetTrigger();
    EXPECT_TRUE(accelerator.CheckTrigger());
    EXPECT_FALSE(accelerator.CheckTrigger());

    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0});
    accelerator.Prepare(model, optimizer);
    accelerator.Backward(model.Loss({0}));
    EXPECT_FALSE(accelerator.stop_requested());
    if (env.rank == 0) accelerator.RequestStop();
    accelerator.Backward(model.Loss({0}));
    EXPECT_TRUE(accelerator.stop_requested());
    return std::string();
  }));
}

TEST(Accelerator, MainProcessFirst) {
  ExpectAllWell(RunRanks(3, [](const Env& env) {
    Accelerator accelerator(Options(env));
    using Clock = std::chrono::steady_clock;
    for (const bool local : {false, true}) {
      Clock::time_point inside;
      {
        const auto turn =
            local ? accelerator.LocalMainProcessFirst() : accelerator.MainProcessFirst();
        if (env.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        inside = Clock::now();
      }
      const auto times =
          accelerator.GatherObject(std::to_string(inside.time_since_epoch().count()));
      for (const std::string& time : times) EXPECT_GE(std::stoll(time), std::stoll(times[0]));
    }
    accelerator.WaitForEveryone();
    accelerator.WaitWithoutTimeout();
    accelerator.EndTraining();
    return std::string();
  }));
}

TEST(Accelerator, SkipFirstBatches) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    DataLoader loader(Data(20), {.batch_size = 3, .shuffle = true});
    DataLoader same = loader;
    accelerator.Prepare(loader, same);
    std::vector<std::vector<int64_t>> all, rest;
    for (const Batch& batch : same) all.push_back(batch.indices);
    DataLoader skipped = accelerator.SkipFirstBatches(loader, 4);
    int64_t step = 4;
    for (const Batch& batch : skipped) {
      rest.push_back(batch.indices);
      EXPECT_EQ(batch.step, step++);
    }
    EXPECT_EQ(rest, (std::vector<std::vector<int64_t>>{all.begin() + 4, all.end()}));
    EXPECT_EQ(loader.epoch(), same.epoch());
    EXPECT_THROW(loader.SkipFirstBatches(8), Error);
    return std::string();
  }));
}

TEST(Accelerator, SkipFirstBatchesIsTheSameForAll) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    DataLoader loader(Data(20), {.batch_size = 3});
    accelerator.Prepare(loader);
    accelerator.SkipFirstBatches(loader, 1 + env.rank);
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said,
              "[preflight] rank 1 has batches to skip 2 but rank 0 has batches to skip 1");
  }
}

TEST(Accelerator, DeterministicProducts) {
  ExpectAllWell(RunRanks(1, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    const Accelerator plain(options);
    EXPECT_FALSE(GetGemmOptions().deterministic);
    options.deterministic = true;
    const Accelerator accelerator(options);
    EXPECT_TRUE(GetGemmOptions().deterministic);
    return std::string();
  }));
}

TEST(Accelerator, BatchSizeOfEachProcess) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.split_batches = false;
    Accelerator accelerator(options);
    DataLoader loader(Data(10), {.batch_size = 2});
    accelerator.Prepare(loader);
    EXPECT_EQ(loader.size(), 3);
    for (const Batch& batch : loader) EXPECT_LE(batch.share->global_size, 4);
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
