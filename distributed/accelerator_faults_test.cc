// Tests how processes of an Accelerator notice that others are lost, fail or make other calls.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <thread>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/distributed/job/error_report.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/launch/launch.h"

namespace lathe {
namespace {

TEST(Accelerator, FindsParametersThatDrift) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.check_parameters_every = 5;
    Accelerator accelerator(options);
    Slope model;
    Layer layer(3, 2);
    model.Initialize(1);
    layer.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    SGD other(layer.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, layer, optimizer, other);
    for (int step = 1; step <= 12; ++step) {
      accelerator.Backward(model.Loss({1}));
      optimizer.Step();
      optimizer.ZeroGrad();
      uint32_t* bits = static_cast<uint32_t*>(layer.Parameters()[0].tensor.raw_data());
      if (step == 7 && env.rank == 1) bits[4] ^= 1;
    }
    return std::string("nobody noticed");
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(
        result.said.starts_with("[step 10: processes have drifted apart] rank 1 has "
                                "parameter weight with checksum "))
        << result.said;
  }
}

// A rank that has done its part is not reported as lost by ranks that go on computing.
TEST(Accelerator, AFunctionMayEndEarlierInSomeRanks) {
  const auto results = RunRanks(1, [](const Env&) {
    const int code = Launch(
        [] {
          Accelerator accelerator;
          DataLoader loader(Data(40), {.batch_size = 2});
          accelerator.Prepare(loader);
          const auto turn = accelerator.MainProcessFirst();
          if (!accelerator.is_main_process()) return;
          const NoGradGuard no_grad;
          for ([[maybe_unused]] const Batch& batch : loader)
            std::this_thread::sleep_for(std::chrono::milliseconds(80));
        },
        2, {.num_gpus = 0});
    const int other = Launch(
        [] {
          Accelerator accelerator;
          DataLoader loader(Data(40), {.batch_size = 2});
          accelerator.Prepare(loader);
          if (accelerator.is_main_process()) return;
          const NoGradGuard no_grad;
          for ([[maybe_unused]] const Batch& batch : loader)
            std::this_thread::sleep_for(std::chrono::milliseconds(80));
        },
        2, {.num_gpus = 0});
    return std::to_string(code) + " " + std::to_string(other);
  });
  EXPECT_EQ(results[0].said, "0 0");
}

// Each rank waits for its own machine's main process, however early another machine's ends.
TEST(Accelerator, AMachinesTurnIsNotAnothers) {
  const auto results = RunProcesses(
      [] {
        std::vector<Env> all = Environments(3, FreePort());
        all[2].local_rank = 0;  // it is alone on a second machine
        return all;
      }(),
      [](const Env& env) {
        Accelerator accelerator(Options(env));
        const auto turn = accelerator.LocalMainProcessFirst();
        if (env.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
        return std::string();
      });
  ExpectAllWell(results);
}

// If several ranks fail with the same error, the lowest rank reports it.
TEST(ShouldReport, TheLowestRankReportsTheSameError) {
  const auto told = [](int n, const std::function<std::string(int rank)>& error) {
    std::vector<std::string> all;
    for (const RankResult& result : RunRanks(n, [&](const Env& env) {
           Accelerator accelerator(Options(env));
           const std::string mine = error(env.rank);
           if (mine.empty()) std::this_thread::sleep_for(std::chrono::seconds(2));
           if (mine.empty()) return mine;
           return ShouldReport(InvalidArgument(mine)) ? mine : std::string("silent");
         })) {
      all.push_back(result.said);
    }
    return all;
  };
  using Said = std::vector<std::string>;
  for (int round = 0; round < 20; ++round)
    EXPECT_EQ(told(3, [](int) { return "wrong"; }), (Said{"wrong", "silent", "silent"}));
  EXPECT_EQ(told(3, [](int rank) { return rank == 0 ? "" : "wrong"; }),
            (Said{"", "wrong", "silent"}));
  EXPECT_EQ(told(3, [](int rank) { return rank == 1 ? "other" : "wrong"; }),
            (Said{"wrong", "other", "silent"}));
  EXPECT_EQ(told(2, [](int rank) { return rank == 1 ? "wrong" : ""; }), (Said{"", "wrong"}));
  EXPECT_EQ(told(1, [](int) { return "wrong"; }), (Said{"wrong"}));
}

TEST(Accelerator, AnExceptionInABackwardPassEndsTheJob) {
  struct Bad : Function {
    Tensor Forward(const std::vector<Tensor>& x) override { return x[0].Clone(); }
    std::vector<Tensor> Backward(const Tensor&) override { throw InvalidArgument("no gradient"); }
  };
  const char* rounds = std::getenv("LATHE_FAULT_ROUNDS");  // rounds for each victim; 1 if unset
  for (int round = 0; round < (rounds == nullptr ? 2 : 2 * std::atoi(rounds)); ++round) {
    const int victim = round % 2;
    const auto results = RunRanks(2, [victim](const Env& env) {
      Accelerator accelerator(Options(env));
      Slope model;
      model.Initialize(1);
      SGD optimizer(model.Parameters(), {.lr = 0.1});
      accelerator.Prepare(model, optimizer);
      for (int step = 0; step < 4; ++step) {
        Tensor loss = model.Loss({1});
        if (step == 2 && env.rank == victim) loss = Apply<Bad>({loss});
        accelerator.Backward(loss);
        optimizer.ZeroGrad();
      }
      return std::string();
    });
    EXPECT_EQ(results[victim].said, "no gradient");
    const std::string other = std::to_string(1 - victim);
    EXPECT_EQ(results[1 - victim].said,
              "[all_reduce] rank " + other + " can't go on: rank " + std::to_string(victim) +
                  " has ended" + (victim == 0 ? "; this rank was training" : " while training"));
    const double seconds = std::abs(results[0].seconds - results[1].seconds);
    std::cout << "rank " << victim << " threw: " << seconds << " s\n";
    EXPECT_LT(seconds, 2);
    EXPECT_LT(std::max(results[0].seconds, results[1].seconds), 10);
  }
}

TEST(Accelerator, AMainProcessThatFailsInItsTurnLetsNobodyWait) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    const auto turn = accelerator.MainProcessFirst();
    if (env.rank == 0) throw InvalidArgument("train.csv:7: ragged");
    return std::string();
  });
  EXPECT_EQ(results[0].said, "train.csv:7: ragged");
  EXPECT_EQ(results[1].said, "[await] rank 1 can't go on: rank 0 has ended");
  EXPECT_LT(results[1].seconds - results[0].seconds, 2);
}

TEST(Accelerator, CollectivesRefuseWhatDoesNotFit) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    accelerator.Reduce(Tensor::Zeros({2, 1 + env.rank}));
    return std::string();
  });
  for (const RankResult& result : results)
    EXPECT_EQ(result.said, "[reduce] rank 1 has float32 [2, 2] but rank 0 has float32 [2, 1]");
}

TEST(Accelerator, TheMainProcessStaysUntilAllAreDone) {
  ExpectAllWell(RunRanks(3, [](const Env& env) {
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(20)});
    if (env.rank == 0) {
      EXPECT_EQ(group->FindMessage("key", std::chrono::milliseconds(1)), std::nullopt);
      group->PostMessage("key", "word");
      EXPECT_EQ(group->FindMessage("key", std::chrono::milliseconds(0)), "word");
    }
    if (env.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (env.rank != 0) {
      EXPECT_EQ(group->AwaitMessage("key", 0), "word");
    }
    return std::string();
  }));
}

// Launch works in a process that has had an Accelerator. Accelerate's notebook_launcher refuses
// this.
TEST(Accelerator, LaunchFromAProcessThatHasHadOne) {
  const auto results = RunRanks(1, [](const Env&) {
    { Accelerator accelerator; }
    const int code = Launch(
        [] {
          Accelerator accelerator;
          if (accelerator.num_processes() != 2) throw InvalidArgument("alone");
          accelerator.WaitForEveryone();
        },
        2, {.num_gpus = 0});
    return std::to_string(code);
  });
  EXPECT_EQ(results[0].said, "0");
}

}  // namespace
}  // namespace lathe
