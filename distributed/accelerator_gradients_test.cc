// Tests that with several ranks gradients are means over batches and windows, whichever
// parameters each rank uses.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

class Processes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Numbers, Processes, testing::Values(1, 2, 3));

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
    // Without ZeroGrad the means add up, also after a pass under NoSync.
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
    // Weights may be given by hand.
    accelerator.Backward(model.Loss({env.rank}), env.rank == 0 ? 3 : 0);
    EXPECT_NEAR(model.weight.grad().Item(), 1, 1e-6);
    EXPECT_NEAR(accelerator.last_loss(), model.weight.Item(), 1e-6);
    return std::string();
  }));
}

TEST(AcceleratorTest, ALossOfSeveralNumbersIsAnError) {
  ExpectAllWell(RunRanks(1, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0});
    accelerator.Prepare(model, optimizer);
    try {
      accelerator.Backward(Add(Tensor::Zeros({2, 3}), model.weight));
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "[backward] the loss must be one number but has shape [2, 3]");
      EXPECT_FALSE(e.hint().empty());
      return std::string();
    }
    return std::string("nothing was thrown");
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
        // Samples 1 to 8 come in batches of 4 and 4, then 9 to 14 in batches of 4 and 2.
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

// Each rank uses different parameters in each step. Each parameter has a bucket of its own, and no
// rank waits for a gradient that another rank will not send.
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
          // A weight that no step has used so far has no gradient.
          const Tensor grad = model.weights[static_cast<size_t>(i)].grad();
          EXPECT_NEAR(grad.defined() ? grad.Item() : 0, expected / n, 1e-6)
              << "step " << step << ", weight " << i;
        }
        optimizer.Step();
        optimizer.ZeroGrad();
      }
      return std::string();
    }));
  }
}

// With overlap, a gradient that comes in more parts than in the step before may have been sent too
// early, which is an error.
TEST(Accelerator, AGradientInMoreParts) {
  for (const bool overlap : {true, false}) {
    const auto results = RunRanks(2, [overlap](const Env& env) {
      AcceleratorOptions options = Options(env);
      options.reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = overlap};
      Accelerator accelerator(options);
      Slope model, other;
      model.Initialize(1);
      other.Initialize(1);
      // The arena has the reverse order: `weight` is sent first, `other` at the end of the pass.
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

// Two losses of one batch are exchanged one after the other. The gradients and the mean loss
// include both.
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
      if (frozen.weight.grad().defined()) frozen.weight.MaterializeGrad().Fill(0);
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

// The gradient of a large table travels between machines by the rows that some rank has used.
TEST(RowsOfATable, TravelBetweenMachines) {
  for (const std::vector<int>& machines : {std::vector<int>{1, 1}, {2, 2}, {2, 1}}) {
    const int n = std::accumulate(machines.begin(), machines.end(), 0);
    for (const bool shard : {false, true}) {
      ExpectAllWell(RunRanks(n, [&](const Env& env) {
        Accelerator accelerator(shard ? Sharded(PlacedOn(env, machines))
                                      : Options(PlacedOn(env, machines)));
        constexpr int64_t kRows = 20000, kColumns = 64;
        nn::Embedding table(kRows, kColumns, 1);
        table.Initialize(1);
        SGD optimizer(table.Parameters(), {.lr = 0});
        accelerator.Prepare(table, optimizer);
        const auto pass = [&] {
          accelerator.Backward(Mean(
              table.Forward(Tensor::FromVector(std::vector<int32_t>{100 * env.rank, 7}, {2}))));
        };
        pass();
        optimizer.ZeroGrad();
        const double before = MeasureTcpTraffic(env.master_port).bytes;
        pass();
        EXPECT_LT(MeasureTcpTraffic(env.master_port).bytes - before, 50e3);  // of 5.1 MB
        accelerator.WaitForEveryone();  // nobody closes a connection before all have measured
        const float* const grad = table.weight.grad().data<float>();
        const float common = 1.0f / (2 * kColumns);
        EXPECT_FLOAT_EQ(grad[7 * kColumns + 3], common);
        for (int rank = 0; rank < n; ++rank)
          EXPECT_FLOAT_EQ(grad[100 * rank * kColumns], common / static_cast<float>(n));
        EXPECT_EQ(grad[8 * kColumns], 0);
        return std::string();
      }));
    }
  }
}

}  // namespace
}  // namespace lathe
