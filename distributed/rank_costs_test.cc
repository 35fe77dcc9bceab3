// Tests what the Accelerator measures of several ranks.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "lathe/distributed/accelerator_state.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

void Sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(StepRecord, ArrivesAsItWasSent) {
  for (const bool stop : {false, true}) {
    for (const double seconds : {0.0, 0.125, 3600.0}) {
      const StepRecord sent = {.loss_sum = 0.1,
                               .weight = 7,
                               .stop = stop,
                               .step = 12345,
                               .checksum = 0xABCDEF012345,
                               .own_seconds = seconds};
      auto floats = Pack(sent);
      for (float& f : floats) f += 0.0f;  // as a sum with the other ranks' zeros
      const StepRecord record = Unpack(floats.data());
      EXPECT_EQ(record.stop, stop);
      EXPECT_EQ(record.own_seconds, seconds);
      EXPECT_EQ(record.step, sent.step);
      EXPECT_EQ(record.checksum, sent.checksum);
      EXPECT_NEAR(record.loss_sum, 0.1, 1e-14);
      EXPECT_EQ(record.weight, 7);
    }
  }
  const auto floats = Pack({.loss_sum = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_FALSE(Unpack(floats.data()).stop);
}

TEST(RankClock, MeasuresWorkAndWaitsApart) {
  CollectiveTimes times;
  RankClock clock;
  EXPECT_EQ(clock.OwnSeconds(), 0);
  clock.EndStep({{}, {}});
  EXPECT_EQ(clock.costs().num_steps, 0);
  clock.Begin(times);
  {
    const auto call = times.MeasureCall();
    Sleep(300);
  }
  std::thread background([&] {
    CollectiveTimes::SetInBackground();
    const auto call = times.MeasureCall();
    Sleep(200);
  });
  Sleep(50);
  {
    const auto wait = times.MeasureWait();
    background.join();
  }
  const double own = clock.OwnSeconds();
  EXPECT_GE(own, 0.05);
  EXPECT_LT(own, 0.15);
  clock.EndStep({{.own_seconds = 1}, {.own_seconds = 5}, {.own_seconds = 2}});
  clock.EndStep({{.own_seconds = 2}, {.own_seconds = 1}, {.own_seconds = 2}});
  const RankCosts costs = clock.costs();
  EXPECT_EQ(costs.num_steps, 2);
  EXPECT_NEAR(costs.in_calls.all, 0.5, 0.1);
  EXPECT_NEAR(costs.in_calls.hidden, 0.05, 0.04);
  EXPECT_EQ(costs.slowest_rank, 1);
  EXPECT_NEAR(costs.slowest_rank_extra, 6 - 3.5, 1e-12);
}

// One of two ranks sleeps in each step, and the other waits for it.
TEST(RankCosts, NameTheRankThatIsSlowedDown) {
  for (const bool shard : {false, true}) {
    const auto results = RunRanks(2, [&](const Env& env) {
      Accelerator accelerator(shard ? Sharded(env) : Options(env));
      Wide model;
      AdamW optimizer(model.Parameters(), {.lr = 0.1});
      accelerator.Prepare(model, optimizer);
      constexpr int kSteps = 10, kPause = 50;
      EXPECT_EQ(accelerator.rank_costs().num_steps, 0);
      for (int step = 0; step < kSteps; ++step) {
        if (env.rank == 1) Sleep(kPause);
        accelerator.Backward(model.Loss(env.rank));
        optimizer.Step();
        optimizer.ZeroGrad();
      }
      const RankCosts costs = accelerator.rank_costs();
      EXPECT_EQ(costs.num_steps, kSteps);
      EXPECT_EQ(costs.slowest_rank, 1);
      // The clock begins with the first backward pass, after the first pause.
      constexpr double kSlept = (kSteps - 1) * kPause / 1e3;
      EXPECT_GT(costs.slowest_rank_extra, 0.8 * kSlept);
      EXPECT_LT(costs.slowest_rank_extra, 1.5 * kSlept);
      EXPECT_GE(costs.in_calls.hidden, 0);
      if (env.rank == 0) {
        EXPECT_GT(costs.in_calls.exposed(), 0.8 * kSlept);
      } else {
        EXPECT_LT(costs.in_calls.exposed(), 0.5 * kSlept);
      }
      return std::string();
    });
    ExpectAllWell(results);
  }
}

TEST(RankCosts, AreNotMeasuredInOneRank) {
  ExpectAllWell(RunRanks(1, [&](const Env& env) {
    Accelerator accelerator(Options(env));
    Wide model;
    AdamW optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    accelerator.Backward(model.Loss(1));
    EXPECT_EQ(accelerator.rank_costs().num_steps, 0);
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
