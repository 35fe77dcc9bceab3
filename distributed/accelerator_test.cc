// What the Accelerator does with several processes. tests/data_parallel_test.cc compares whole
// trainings.
#include "lathe/distributed/accelerator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "lathe/core/autograd.h"
#include "lathe/core/gemm_options.h"
#include "lathe/core/ops/elementwise.h"
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
    EXPECT_EQ(ran, (env.rank == 0 ? 9 : 0) + (env.rank == n - 1 ? 2 : 0) + (env.rank == 1 ? 4 : 0));
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
    // Rows in the order of ranks, however many each has.
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
        EXPECT_EQ(all.numel(), batch.whole->size);
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

TEST_P(Processes, BackwardAveragesOverTheWholeBatch) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0});
    DataLoader loader(Data(10), {.batch_size = 4});
    accelerator.Prepare(model, optimizer, loader);
    const std::vector<double> means = {2.5, 6.5, 9.5};
    size_t batch_number = 0;
    for (const Batch& batch : loader) {
      accelerator.Backward(model.Loss(batch.indices));
      EXPECT_NEAR(model.weight.grad().Item(), means[batch_number], 1e-5);
      EXPECT_NEAR(accelerator.last_loss(), means[batch_number] * model.weight.Item(), 1e-5);
      ++batch_number;
      optimizer.Step();
      optimizer.ZeroGrad();
    }
    EXPECT_EQ(batch_number, 3u);
    // Without ZeroGrad, and by hand: sums of means.
    batch_number = 0;
    for (const Batch& batch : loader) {
      if (batch_number++ == 1) {
        const auto local = accelerator.NoSync();
        accelerator.Backward(model.Loss(batch.indices));
      } else {
        accelerator.Backward(model.Loss(batch.indices));
      }
    }
    EXPECT_NEAR(model.weight.grad().Item(), 2.5 + 6.5 + 9.5, 1e-4);
    optimizer.ZeroGrad();
    // Weights given by hand.
    accelerator.Backward(model.Loss({env.rank}), env.rank == 0 ? 3 : 0);
    EXPECT_NEAR(model.weight.grad().Item(), 1, 1e-6);
    EXPECT_NEAR(accelerator.last_loss(), model.weight.Item(), 1e-6);
    return std::string();
  }));
}

TEST_P(Processes, AccumulateStepsWithEveryWindow) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options);
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 1e-3});
    const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 2});
    DataLoader loader(Data(14), {.batch_size = 4});
    accelerator.Prepare(model, optimizer, loader, *scheduler);
    std::vector<bool> synced;
    double before = model.weight.Item();
    for (const Batch& batch : loader) {
      const auto accumulation = accelerator.Accumulate(model);
      accelerator.Backward(model.Loss(batch.indices));
      const bool sync = accelerator.sync_gradients();
      synced.push_back(sync);
      EXPECT_EQ(accelerator.ClipGradNorm(optimizer, 100).defined(), sync);
      if (sync) {
        // Samples 1 to 8 in batches of 4 and 4, then 9 to 14 in batches of 4 and 2.
        EXPECT_NEAR(model.weight.grad().Item(), synced.size() == 2 ? 4.5 : 11.5, 1e-5);
      }
      const double rate = optimizer.lr();
      optimizer.Step();
      scheduler->Step();
      EXPECT_EQ(accelerator.optimizer_step_was_skipped(), !sync);
      EXPECT_EQ(optimizer.lr() == rate, !sync);
      EXPECT_EQ(model.weight.Item() == before, !sync);
      before = model.weight.Item();
      optimizer.ZeroGrad();
    }
    EXPECT_EQ(synced, (std::vector<bool>{false, true, false, true}));
    EXPECT_EQ(optimizer.step_count(), 2);
    EXPECT_EQ(optimizer.lr(), 0);
    return std::string();
  }));
}

// Each rank uses other parameters in each step, and all of them are exchanged in buckets of their
// own: what nobody waits for in vain.
TEST_P(Processes, ParametersThatSomeLeaveOut) {
  constexpr int kWeights = 5;
  const int n = GetParam();
  for (const bool overlap : {true, false}) {
    ExpectAllWell(RunRanks(n, [n, overlap](const Env& env) {
      AcceleratorOptions options = Options(env);
      options.reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = overlap};
      Accelerator accelerator(options);
      struct Model : Module {
        Model() {
          for (int i = 0; i < kWeights; ++i)
            weights.push_back(RegisterParameter("weight" + std::to_string(i), {}, Init::Ones()));
        }
        std::vector<Tensor> weights;
      } model;
      model.Initialize(1);
      SGD optimizer(model.Parameters(), {.lr = 0});
      accelerator.Prepare(model, optimizer);
      const auto uses = [](int rank, int step, int weight) {
        return (rank * 7 + step * 3 + weight * 5) % 4 == 0 || step == 2;
      };
      for (int step = 0; step < 8; ++step) {
        Tensor loss = Scale(model.weights[0], 0);
        for (int i = 0; i < kWeights; ++i) {
          if (uses(env.rank, step, i))
            loss = Add(loss, Scale(model.weights[static_cast<size_t>(i)], env.rank + 1));
        }
        accelerator.Backward(loss);
        for (int i = 0; i < kWeights; ++i) {
          double expected = 0;
          for (int rank = 0; rank < n; ++rank) expected += uses(rank, step, i) ? rank + 1 : 0;
          EXPECT_NEAR(model.weights[static_cast<size_t>(i)].grad().Item(), expected / n, 1e-6)
              << "step " << step << ", weight " << i;
        }
        optimizer.Step();
        optimizer.ZeroGrad();
      }
      return std::string();
    }));
  }
}

// A gradient that comes in more parts than before may have gone on its way too early.
TEST(Accelerator, AGradientInMoreParts) {
  for (const bool overlap : {true, false}) {
    const auto results = RunRanks(2, [overlap](const Env& env) {
      AcceleratorOptions options = Options(env);
      options.reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = overlap};
      Accelerator accelerator(options);
      Slope model, other;
      model.Initialize(1);
      other.Initialize(1);
      // The last one is exchanged first, and the first one with the end of the pass.
      SGD optimizer({{"other", other.weight}, {"weight", model.weight}}, {.lr = 0});
      accelerator.Prepare(model, other, optimizer);
      const auto use = [&](const Tensor& x) {
        return Checkpoint([&](const Tensor& y) { return Mul(y, model.weight); }, x);
      };
      for (int step = 0; step < 2; ++step) {
        Tensor x = use(other.weight);
        if (step == 1) x = use(x);
        accelerator.Backward(Sum(x));
        optimizer.ZeroGrad();
      }
      return std::string("all well");
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.said,
                overlap ? "[reducer] the gradient of parameter weight came in more parts than in "
                          "the step before, after it had been sent"
                        : "all well");
    }
  }
}

// One process on each machine: ranks 0 and 2 here.
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

TEST(Accelerator, AnotherWindowFromTheNextOneOn) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0});
    DataLoader loader(Data(12), {.batch_size = 2});
    accelerator.Prepare(model, optimizer, loader);
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 1);
    accelerator.set_gradient_accumulation_steps(3);
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
    std::vector<bool> synced;
    for (const Batch& batch : loader) {
      const auto accumulation = accelerator.Accumulate(model);
      accelerator.Backward(model.Loss(batch.indices));
      synced.push_back(accelerator.sync_gradients());
      if (!accelerator.sync_gradients()) continue;
      EXPECT_NEAR(model.weight.grad().Item(), synced.size() == 3 ? 3.5 : 9.5, 1e-5);
      optimizer.ZeroGrad();
    }
    EXPECT_EQ(synced, (std::vector<bool>{false, false, true, false, false, true}));
    EXPECT_THROW(accelerator.set_gradient_accumulation_steps(0), Error);
    return std::string();
  }));
}

// The gradients of both losses of a batch, though they are exchanged twice.
TEST_P(Processes, TwoLossesOfOneBatch) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options);
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0});
    DataLoader loader(Data(14), {.batch_size = 4});
    accelerator.Prepare(model, optimizer, loader);
    std::vector<double> grads, losses;
    for (const Batch& batch : loader) {
      const auto accumulation = accelerator.Accumulate(model);
      accelerator.Backward(model.Loss(batch.indices));
      accelerator.Backward(Scale(model.Loss(batch.indices), 2));
      if (!accelerator.sync_gradients()) continue;
      grads.push_back(model.weight.grad().Item());
      losses.push_back(accelerator.last_loss());
      optimizer.ZeroGrad();
    }
    for (const auto& values : {grads, losses}) {
      EXPECT_NEAR(values.at(0), 3 * 4.5, 1e-4);
      EXPECT_NEAR(values.at(1), 3 * 11.5, 1e-4);
    }
    return std::string();
  }));
}

TEST_P(Processes, ABatchThatIsPassedOverCountsNowhere) {
  const int n = GetParam();
  ExpectAllWell(RunRanks(n, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.gradient_accumulation_steps = 3;
    Accelerator accelerator(options);
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0});
    DataLoader loader(Data(12), {.batch_size = 4});
    accelerator.Prepare(model, optimizer, loader);
    int number = 0;
    for (const Batch& batch : loader) {
      const auto accumulation = accelerator.Accumulate(model);
      if (number++ == 1) continue;
      accelerator.Backward(model.Loss(batch.indices));
    }
    EXPECT_NEAR(model.weight.grad().Item(), (2.5 + 10.5) / 2, 1e-5);
    EXPECT_NEAR(accelerator.last_loss(), (2.5 + 10.5) / 2, 1e-5);
    return std::string();
  }));
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
    accelerator.WaitHoweverLong();
    accelerator.EndTraining();
    return std::string();
  }));
}

// Parameters that are thawed later are exchanged, too.
TEST(Accelerator, ThawedParameters) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope frozen, model;
    model.Initialize(1);
    frozen.Initialize(1);
    frozen.weight.SetRequiresGrad(false);
    SGD optimizer(model.Parameters(), {.lr = 0});
    accelerator.Prepare(model, frozen, optimizer);
    for (const bool thawed : {false, true, false}) {
      frozen.weight.SetRequiresGrad(thawed);
      if (frozen.weight.grad().defined()) frozen.weight.grad().Fill(0);
      accelerator.Backward(Add(model.Loss({env.rank}), frozen.Loss({env.rank})));
      EXPECT_NEAR(model.weight.grad().Item(), 1.5, 1e-6);
      if (thawed) {
        EXPECT_NEAR(frozen.weight.grad().Item(), 1.5, 1e-6);
      }
      optimizer.ZeroGrad();
    }
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
    EXPECT_THROW(loader.SkipFirst(8), Error);
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
    for (const Batch& batch : loader) EXPECT_LE(batch.whole->size, 4);
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
