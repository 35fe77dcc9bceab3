// Compares optimizers' updates as CUDA graphs with the same launches one by one, and with the host.
// There is a loss scale, and some of the updates are skipped.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/graphs/update_graphs.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/update_graphs_testing.h"

namespace lathe {
namespace {

// The result of training with a loss scaler.
struct Scaled {
  std::vector<float> values;
  double lr, used_lr, scale;
  int64_t step_count, num_skipped;
  GraphStatistics statistics;
};

struct ScaledLoop {
  Device device;
  bool graphs = false;
  bool asks = false;  // asks after each step whether it was skipped
  StepGuard* guard = nullptr;
  // Called after step i; by default it makes the schedule's step.
  std::function<void(int i, Optimizer& optimizer, Scheduler& scheduler)> after =
      [](int, Optimizer&, Scheduler& scheduler) { scheduler.Step(); };
};

// Makes 16 steps of two passes each; some overflow.
Scaled TrainScaled(const MakeOptimizer& make, const ScaledLoop& loop) {
  TwoLayers net(DType::kF32);
  net.To(loop.device);
  const auto optimizer = make(net);
  optimizer->UseGraphs(loop.graphs);
  const auto scaler = std::make_shared<GradScaler>(
      GradScalerOptions{.init_scale = 1024, .growth_factor = 4, .growth_interval = 3});
  optimizer->UseGradScaler(scaler);
  const auto scheduler = GetScheduler("cosine", *optimizer, {.num_training_steps = 16});
  for (int i = 0; i < 16; ++i) {
    const bool overflows = i < 2 || i == 6 || i == 13 || i == 15;
    scaler->Backward(net.Loss(true), overflows ? 1e38 : 0.5);
    scaler->Backward(net.Loss(i % 4 != 0), 0.25);
    if (loop.guard != nullptr) {
      loop.guard->ClipAndStep(*optimizer, 0.01, {});
    } else {
      if (i != 11) ClipGradNorm(*optimizer, 0.01);
      optimizer->Step();
    }
    if (loop.asks) {
      EXPECT_EQ(optimizer->step_was_skipped(), overflows) << i;
    }
    loop.after(i, *optimizer, *scheduler);
    optimizer->ZeroGrad();
  }
  return {optimizer->arena().values().ToVector<float>(),
          optimizer->lr(),
          optimizer->used_lr(),
          scaler->scale(),
          optimizer->step_count(),
          scaler->num_skipped_steps(),
          optimizer->graph_statistics()};
}

void ExpectSameScaled(const Scaled& a, const Scaled& b) {
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.lr, b.lr);
  EXPECT_EQ(a.used_lr, b.used_lr);
  EXPECT_EQ(a.scale, b.scale);
  EXPECT_EQ(a.step_count, b.step_count);
  EXPECT_EQ(a.num_skipped, b.num_skipped);
}

class UpdateGraphsLossScaleTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

// The device alone decides which steps are skipped. With graphs and without, the results are the
// same as if the host looks after each step. They are also those of training on the host.
TEST_F(UpdateGraphsLossScaleTest, LossScaling) {
  const auto every_other_step = [](int i, Optimizer&, Scheduler& scheduler) {
    if (i % 2 == 1) scheduler.Step();
  };
  const auto two_for_one = [](int i, Optimizer&, Scheduler& scheduler) {
    for (int k = 0; k < i % 3; ++k) scheduler.Step();
  };
  const auto rates_that_are_set = [](int i, Optimizer& optimizer, Scheduler& scheduler) {
    if (i == 5 || i == 13) optimizer.SetLr(0, 0.03);
    scheduler.Step();
    if (i == 7) optimizer.SetLr(0, 0.004);
  };
  std::unique_ptr<Scheduler> another;
  const auto another_schedule = [&](int i, Optimizer& optimizer, Scheduler& scheduler) {
    if (i == 7) another = GetScheduler("linear", optimizer, {.num_training_steps = 20});
    (i < 7 ? scheduler : *another).Step();
  };
  for (size_t m = 0; m < kMakeOptimizers.size(); ++m) {
    for (const auto& after : {ScaledLoop().after, decltype(ScaledLoop().after)(every_other_step),
                              decltype(ScaledLoop().after)(two_for_one),
                              decltype(ScaledLoop().after)(rates_that_are_set),
                              decltype(ScaledLoop().after)(another_schedule)}) {
      const Scaled host = TrainScaled(kMakeOptimizers[m], {.device = {}, .after = after});
      EXPECT_EQ(host.num_skipped, 5);
      EXPECT_EQ(host.step_count, 11);
      const Device device = CheckedDevice();
      const Scaled asked =
          TrainScaled(kMakeOptimizers[m], {.device = device, .asks = true, .after = after});
      const Scaled late = TrainScaled(kMakeOptimizers[m], {.device = device, .after = after});
      const Scaled graphs =
          TrainScaled(kMakeOptimizers[m], {.device = device, .graphs = true, .after = after});
      ExpectSameScaled(late, asked);
      ExpectSameScaled(graphs, asked);
      EXPECT_GT(graphs.statistics.replayed, 8);
      ASSERT_EQ(asked.values.size(), host.values.size());
      for (size_t i = 0; i < host.values.size(); ++i) {
        ASSERT_NEAR(asked.values[i], host.values[i], 5e-6) << i;
      }
      EXPECT_EQ(asked.lr, host.lr);
      EXPECT_EQ(asked.used_lr, host.used_lr);
      EXPECT_EQ(asked.scale, host.scale);
      EXPECT_EQ(asked.step_count, host.step_count);
      EXPECT_EQ(asked.num_skipped, host.num_skipped);
    }
  }
}

TEST_F(UpdateGraphsLossScaleTest, AGuardLetsOverflowsPass) {
  const auto train = [](bool graphs, bool guarded) {
    StepGuard guard;
    return TrainScaled(kMakeOptimizers[1], {.device = CheckedDevice(),
                                            .graphs = graphs,
                                            .guard = guarded ? &guard : nullptr,
                                            .after = [&](int i, Optimizer&, Scheduler& scheduler) {
                                              scheduler.Step();
                                              if (guarded && i == 2) {
                                                EXPECT_EQ(guard.last_scale().Item(), 256);
                                              }
                                            }});
  };
  const Scaled graphs = train(true, true);
  ExpectSameScaled(graphs, train(false, true));
  EXPECT_EQ(graphs.statistics.recorded, 1);
  EXPECT_EQ(graphs.statistics.replayed, 15);
  EXPECT_EQ(graphs.num_skipped, 5);
}

}  // namespace
}  // namespace lathe
