// Tests of AcceleratorOptions::shard_optimizer beside those in tests/data_parallel_test.cc, which
// compare trainings.
#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

// Counts the elements of the gradient that are x.
int64_t CountGrads(const Tensor& p, float x) {
  const float* grad = Tensor(p.impl()->gradient().buffer).data<float>();
  return std::count_if(grad, grad + p.numel(), [x](float g) { return std::fabs(g - x) < 1e-5f; });
}

// The number of processes, and whether they share parameters.
class Processes : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  const int n = std::get<0>(GetParam());
  const bool share = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Numbers, Processes,
                         testing::Combine(testing::Values(1, 2, 3), testing::Bool()));

TEST_P(Processes, GradientsAreNotShownInParts) {
  ExpectAllWell(RunRanks(n, [this](const Env& env) {
    Accelerator accelerator(Sharded(env, share));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 0.5});
    accelerator.Prepare(model, optimizer);
    const float before = model.weight.data<float>()[7];
    for (int step = 0; step < 3; ++step) {
      accelerator.Backward(model.Loss(env.rank + 1));
      const double mean = (n + 1) / 2.0;
      if (n == 1) {
        EXPECT_EQ(model.weight.grad().data<float>()[0], 1);
      } else {
        EXPECT_LT(CountGrads(model.weight, static_cast<float>(mean)), Wide::kIn);
        try {
          model.weight.grad();
          ADD_FAILURE() << "a part of the gradient was given for all";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), absl::StatusCode::kFailedPrecondition);
          EXPECT_EQ(e.message(), "[grad] this process holds only its part of the gradient");
          EXPECT_NE(e.hint().find("AcceleratorOptions::shard_optimizer"), std::string::npos);
        }
      }
      EXPECT_NEAR(GradNorm(optimizer).Item(), mean * std::sqrt(Wide::kIn), 1e-3);
      optimizer.Step();
      optimizer.ZeroGrad();
      EXPECT_EQ(model.weight.MaterializeGrad().data<float>()[0], 0);
      EXPECT_NEAR(model.weight.data<float>()[7], before - (step + 1) * 0.5 * mean, 1e-5);
      accelerator.CheckParametersAgree();
    }
    return std::string();
  }));
}

// Gradients that were summed and not zeroed count once when they are summed again with new ones.
TEST_P(Processes, SumsCountOnce) {
  ExpectAllWell(RunRanks(n, [this](const Env& env) {
    Accelerator accelerator(Sharded(env, share));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    const std::vector<float> before = model.weight.ToVector<float>();
    const double mean = (n - 1) / 2.0;
    for (int i = 0; i < 3; ++i) accelerator.Backward(model.Loss(env.rank));
    {
      const auto local = accelerator.NoSync();
      accelerator.Backward(model.Loss(env.rank));
    }
    accelerator.Backward(model.Loss(env.rank));
    EXPECT_NEAR(GradNorm(optimizer).Item(), 5 * mean * std::sqrt(Wide::kIn), 1e-2);
    optimizer.Step();
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_NEAR(model.weight.data<float>()[i], before[i] - 5 * mean, 1e-4) << i;
    return std::string();
  }));
}

// Sums of gradients also count once if another model is prepared in between, which makes a new
// reducer.
TEST_P(Processes, SumsCountOnceForTheNextReducer) {
  for (const bool shard : {false, true}) {
    ExpectAllWell(RunRanks(n, [this, shard](const Env& env) {
      AcceleratorOptions options = Sharded(env, share);
      options.shard_optimizer = shard;
      Accelerator accelerator(options);
      Wide model, other;
      SGD optimizer(model.Parameters(), {.lr = 1});
      accelerator.Prepare(model, optimizer);
      const std::vector<float> before = model.weight.ToVector<float>();
      const double mean = (n - 1) / 2.0;
      accelerator.Backward(model.Loss(env.rank));
      SGD others(other.Parameters(), {.lr = 1});
      accelerator.Prepare(other, others);
      accelerator.Backward(model.Loss(env.rank));
      EXPECT_NEAR(GradNorm(optimizer).Item(), 2 * mean * std::sqrt(Wide::kIn), 1e-2);
      optimizer.Step();
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_NEAR(model.weight.data<float>()[i], before[i] - 2 * mean, 1e-4) << i;
      accelerator.CheckParametersAgree();
      return std::string();
    }));
  }
}

// A gradient that is set by hand counts as this rank's stripes of the sum.
TEST_P(Processes, GradientsSetByHand) {
  ExpectAllWell(RunRanks(n, [this](const Env& env) {
    Accelerator accelerator(Sharded(env, share));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    const std::vector<float> before = model.weight.ToVector<float>();
    model.weight.SetGrad(Tensor::Full(model.weight.shape(), 2));
    accelerator.Backward(model.Loss(0));
    accelerator.ClipGradValue(optimizer, 1.5 * n);
    optimizer.Step();
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_NEAR(model.weight.data<float>()[i], before[i] - 1.5 * n, 1e-5) << i;
    // A gradient that is set after the exchange is used for the update as it is.
    accelerator.Backward(model.Loss(0));
    model.weight.SetGrad(Tensor::Full(model.weight.shape(), 1));
    EXPECT_EQ(model.weight.grad().data<float>()[5], 1);
    accelerator.ClipGradNorm(optimizer, 0.5 * std::sqrt(Wide::kIn));
    optimizer.Step();
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_NEAR(model.weight.data<float>()[i], before[i] - 1.5 * n - 0.5, 1e-5) << i;
    accelerator.CheckParametersAgree();
    return std::string();
  }));
}

TEST_P(Processes, NormsAreThoseOfGradientsAsTheyAre) {
  ExpectAllWell(RunRanks(n, [this](const Env& env) {
    Accelerator accelerator(Sharded(env, share));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    const double mean = (n + 1) / 2.0, root = std::sqrt(Wide::kIn);
    const auto norm = [&] { return GradNorm(optimizer).Item() / root; };
    for (int step = 0; step < 3; ++step) {
      accelerator.Backward(model.Loss(env.rank + 1));
      EXPECT_NEAR(norm(), mean, 1e-4);
      if (step == 1) {
        ClipGradValue(optimizer, 0.5);
        EXPECT_NEAR(norm(), 0.5, 1e-4);
      } else if (step == 2) {
        accelerator.ClipGradNorm(optimizer, 0.25 * root);
        EXPECT_NEAR(norm(), 0.25, 1e-4);
        EXPECT_NEAR(norm(), 0.25, 1e-4);
      }
      optimizer.Step();
      optimizer.ZeroGrad();
      EXPECT_EQ(norm(), 0);
    }
    // A gradient that is set by hand replaces the sum.
    accelerator.Backward(model.Loss(env.rank + 1));
    model.weight.SetGrad(Tensor::Full(model.weight.shape(), 5));
    EXPECT_NEAR(norm(), 5, 1e-4);
    return std::string();
  }));
}

// A model that no prepared optimizer updates may be among them; its gradient stays whole.
TEST_P(Processes, SeveralOptimizers) {
  ExpectAllWell(RunRanks(n, [this](const Env& env) {
    Accelerator accelerator(Sharded(env, share));
    Wide a, b, c;
    SGD first(a.Parameters(), {.lr = 1}), again(a.Parameters(), {.lr = 1});
    AdamW second(b.Parameters(), {.lr = 0.1, .weight_decay = 0});
    accelerator.Prepare(first, a, b, second, again, c);
    const float before = a.weight.data<float>()[Wide::kIn - 1];
    for (int step = 0; step < 3; ++step) {
      accelerator.Backward(
          Add(Add(a.Loss(env.rank + 1), b.Loss(env.rank + 1)), c.Loss(env.rank + 1)));
      EXPECT_NEAR(c.weight.grad().data<float>()[1], (n + 1) / 2.0, 1e-6);
      first.Step();
      again.Step();
      second.Step();
      first.ZeroGrad();
      second.ZeroGrad();
      c.weight.SetGrad({});
      accelerator.CheckParametersAgree();
    }
    EXPECT_NEAR(a.weight.data<float>()[Wide::kIn - 1], before - 6 * (n + 1) / 2.0, 1e-4);
    // Adam's steps with the same gradient are all of the same length.
    EXPECT_NEAR(b.weight.data<float>()[9], Wide().weight.data<float>()[9] - 0.3, 1e-3);
    return std::string();
  }));
}

TEST_P(Processes, StepsWaitWhileGradientsAccumulate) {
  ExpectAllWell(RunRanks(n, [this](const Env& env) {
    AcceleratorOptions options = Sharded(env, share);
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options);
    Wide model;
    AdamW optimizer(model.Parameters(), {.lr = 0.1});
    DataLoader loader(Data(14), {.batch_size = 4});
    accelerator.Prepare(loader, model, optimizer);
    int steps = 0;
    for (const Batch& batch : loader) {
      const auto accumulation = accelerator.Accumulate();
      accelerator.Backward(model.Loss(static_cast<double>(batch.size())));
      EXPECT_EQ(accelerator.ClipGradNorm(optimizer, 1).defined(), accelerator.sync_gradients());
      optimizer.Step();
      optimizer.ZeroGrad();
      steps += accelerator.optimizer_step_was_skipped() ? 0 : 1;
      accelerator.CheckParametersAgree();
    }
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(optimizer.step_count(), 2);
    return std::string();
  }));
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// There are two moments of 96 MiB each, and each rank keeps a half.
TEST(ShardOptimizer, MomentsOfOthersTakeNoMemory) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env));
    Wide model(24 << 20);
    AdamW optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    accelerator.Backward(model.Loss(1));
    const int64_t before = ResidentBytes();
    optimizer.Step();
    const double more = static_cast<double>(ResidentBytes() - before) / (1 << 20);
    EXPECT_GT(more, 90);
    EXPECT_LT(more, 105);
    return std::string();
  }));
}

TEST(ShardOptimizer, OnOneRankOnly) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.shard_optimizer = env.rank == 0;
    Accelerator accelerator(options);
    return std::string();
  });
  for (const RankResult& result : results)
    EXPECT_EQ(result.said,
              "[preflight] rank 1 has shard_optimizer false but rank 0 has shard_optimizer true");
}

TEST(ShardOptimizer, ARankThatIsLostInAStepLeavesItHalfDone) {
  for (const bool share : {false, true}) {
    const auto results = RunRanks(2, [share](const Env& env) {
      Accelerator accelerator(Sharded(env, share));
      Wide model;
      AdamW optimizer(model.Parameters(), {.lr = 0.1});
      accelerator.Prepare(model, optimizer);
      accelerator.Backward(model.Loss(1));
      if (env.rank == 1) raise(SIGKILL);
      try {
        optimizer.Step();
      } catch (const Error& e) {
        return e.message() + (optimizer.step_is_half_done() ? "; half done" : "");
      }
      return std::string("nobody noticed");
    });
    EXPECT_EQ(results[0].said, std::string(share ? "[barrier]" : "[all_gather]") +
                                   " rank 0 can't go on: rank 1 has ended while training; half "
                                   "done");
  }
}

}  // namespace
}  // namespace lathe
