// Optimizers' updates as CUDA graphs (optim/graphs/update_graphs.h), compared with the same
// launches one by one on one device. They give the same bits.
#include "lathe/optim/graphs/update_graphs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/module.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

// Two layers and their input. `third` has a gradient only in passes that ask for it.
struct Net : Module {
  explicit Net(DType compute) {
    first = RegisterParameter("first", {90, 70}, Init::Zeros());
    second = RegisterParameter("second", {3, 90}, Init::Zeros());
    third = RegisterParameter("third", {3}, Init::Zeros());
    Initialize(1);
    float v = 0;
    for (Tensor* p : {&first, &second, &third}) {
      for (float& w : p->values<float>()) w = std::sin(v += 1.7f) / 9;
    }
    Floats values(7 * 70);
    for (float& w : values) w = std::cos(v += 0.9f);
    x = Tensor::FromVector(values, {7, 70}).To(compute);
  }
  Tensor Loss(bool with_third) const {
    const Tensor on = x.To(first.device());
    const Tensor hidden = Tanh(Linear(on, first, {}));
    const Tensor y = Linear(hidden, second, with_third ? third : Tensor());
    return Mean(Mul(y, y));
  }
  Tensor first, second, third, x;
};

using Make = std::function<std::unique_ptr<Optimizer>(Net&)>;

// Returns two groups with different rates and decays.
std::vector<ParameterGroup> Groups(Net& net) {
  std::vector<ParameterGroup> groups(2);
  groups[0].lr = 0.02;
  groups[0].weight_decay = 0.3;
  for (const Parameter& p : net.Parameters()) {
    groups[p.name == "second" ? 0 : 1].parameters.push_back(p);
  }
  return groups;
}

const std::vector<Make> kMakes = {
    [](Net& net) { return std::make_unique<AdamW>(net.Parameters(), AdamWOptions{.lr = 0.01}); },
    [](Net& net) {
      return std::make_unique<AdamW>(
          Groups(net), AdamWOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6});
    },
    [](Net& net) { return std::make_unique<SGD>(net.Parameters(), SGDOptions{.lr = 0.1}); },
    [](Net& net) {
      return std::make_unique<SGD>(Groups(net),
                                   SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.25});
    },
    [](Net& net) {
      return std::make_unique<SGD>(
          Groups(net),
          SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
    }};

constexpr int kSteps = 10;
// Called between Backward and ZeroGrad of step i, to make the update.
using Update = std::function<void(int i, Net& net, Optimizer& optimizer)>;
// Called before the backward pass of step i.
using Before = std::function<void(int i, Net& net, Optimizer& optimizer)>;

struct Outcome {
  Floats values;
  GraphStatistics statistics;
};

class UpdateGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }

  static Outcome Train(bool graphs, DType compute, const Make& make, const Update& update,
                       const Before& before, const std::function<bool(int)>& with_third) {
    Net net(compute);
    net.To(CheckedDevice());
    const auto optimizer = make(net);
    optimizer->UseGraphs(graphs);
    const auto scheduler = GetScheduler("cosine", *optimizer, {.num_training_steps = kSteps});
    for (int i = 0; i < kSteps; ++i) {
      if (before) before(i, net, *optimizer);
      Backward(net.Loss(with_third(i)));
      update(i, net, *optimizer);
      scheduler->Step();
      optimizer->ZeroGrad();
    }
    return {optimizer->arena().values().ToVector<float>(), optimizer->graph_statistics()};
  }

  // Trains with every optimizer, with graphs and without, and expects the same results.
  static GraphStatistics ExpectTheSame(
      const Update& update, const Before& before = nullptr, DType compute = DType::kF32,
      const std::function<bool(int)>& with_third = [](int) { return true; }) {
    GraphStatistics statistics;
    for (size_t i = 0; i < kMakes.size(); ++i) {
      const Outcome plain = Train(false, compute, kMakes[i], update, before, with_third);
      const Outcome graphs = Train(true, compute, kMakes[i], update, before, with_third);
      EXPECT_EQ(graphs.values, plain.values) << "optimizer " << i;
      EXPECT_EQ(plain.statistics.replayed, 0);
      EXPECT_GT(graphs.statistics.replayed, 0) << "optimizer " << i;
      statistics = graphs.statistics;
    }
    return statistics;
  }
};

void PlainStep(int, Net&, Optimizer& optimizer) { optimizer.Step(); }
void ClippedStep(int, Net&, Optimizer& optimizer) {
  ClipGradNorm(optimizer, 0.01);
  optimizer.Step();
}

TEST_F(UpdateGraphsTest, SameBits) {
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(ToString(compute));
    const GraphStatistics plain = ExpectTheSame(PlainStep, nullptr, compute);
    EXPECT_EQ(plain.recorded, 1);
    EXPECT_LE(plain.eager, 2);  // low-precision copies come with the first step
    EXPECT_EQ(plain.replayed + plain.eager, kSteps);
    EXPECT_EQ(ExpectTheSame(ClippedStep, nullptr, compute).recorded, 2);
  }
}

TEST_F(UpdateGraphsTest, ClippingAndStepInOne) {
  // Each norm is that of its own step, even if it is read long after.
  std::vector<Tensor> norms, norms_apart;
  StepGuard guard, guard_apart;
  const auto at_once = [&](bool graphs) {
    norms.clear();
    guard = {};
    return Train(
        graphs, DType::kBF16, kMakes[1],
        [&](int i, Net&, Optimizer& optimizer) {
          const Tensor losses = Tensor::Full({2}, i, DType::kF32, CheckedDevice());
          norms.push_back(guard.ClipAndStep(optimizer, i < 6 ? 0.01 : 0.001, losses));
        },
        nullptr, [](int) { return true; });
  };
  const Outcome apart = Train(
      false, DType::kBF16, kMakes[1],
      [&](int i, Net&, Optimizer& optimizer) {
        norms_apart.push_back(guard_apart.Clip(optimizer, i < 6 ? 0.01 : 0.001, {}));
        optimizer.Step();
      },
      nullptr, [](int) { return true; });
  for (const bool graphs : {false, true}) {
    const Outcome one = at_once(graphs);
    EXPECT_EQ(one.values, apart.values);
    ASSERT_EQ(norms.size(), norms_apart.size());
    for (size_t i = 0; i < norms.size(); ++i) EXPECT_EQ(norms[i].Item(), norms_apart[i].Item());
    EXPECT_EQ(one.statistics.recorded, graphs ? 1 : 0);
    EXPECT_EQ(one.statistics.replayed + one.statistics.eager, kSteps);
  }
}

TEST_F(UpdateGraphsTest, ClippingNowAndThen) {
  ExpectTheSame([](int i, Net& net, Optimizer& optimizer) {
    if (i % 3 != 0) ClipGradNorm(optimizer, 0.1 / (i + 1));
    if (i % 4 == 1) net.second.MaterializeGrad();  // multiplies it by the factor
    if (i % 5 == 3) ClipGradNorm(optimizer, 1e-4);
    if (i % 5 == 4) ClipGradValue(optimizer, 1e-3);
    optimizer.Step();
  });
}

TEST_F(UpdateGraphsTest, FrozenParametersAndThoseWithoutGradient) {
  const auto freeze = [](int i, Net& net, Optimizer&) {
    net.first.SetRequiresGrad(i % 5 != 2);
    net.second.SetRequiresGrad(i < 4 || i > 6);
  };
  ExpectTheSame(ClippedStep, freeze, DType::kF32, [](int i) { return i % 4 == 0; });
}

TEST_F(UpdateGraphsTest, RatesWeightsAndGradientsThatAreSet) {
  const auto set = [](int i, Net& net, Optimizer& optimizer) {
    if (i == 3) optimizer.SetLr(optimizer.num_groups() - 1, 0.3);
    if (i == 5) net.first.Fill(0.01);
    if (i == 7) net.second.SetGrad(Tensor());
  };
  for (const DType compute : {DType::kF32, DType::kBF16}) ExpectTheSame(ClippedStep, set, compute);
}

TEST_F(UpdateGraphsTest, AModelThatMovesAway) {
  if (CheckedDevice().is_cpu()) GTEST_SKIP() << "there is one device";
  const auto move = [](int i, Net& net, Optimizer& optimizer) {
    // One step is made on the host.
    if (i == 5) net.To(Device{});
    if (i == 6) net.To(CheckedDevice());
    if (i == 8) net.To(Device{}), net.To(CheckedDevice());
    EXPECT_EQ(optimizer.step_count(), i);
  };
  ExpectTheSame(ClippedStep, move);
}

TEST_F(UpdateGraphsTest, HeldBackSteps) {
  const float inf = std::numeric_limits<float>::infinity();
  StepGuard guard;
  const auto update = [&](int i, Net& net, Optimizer& optimizer) {
    if (i == 0) guard = {};
    if (i == 4) net.second.MaterializeGrad().Fill(inf);
    const Floats before = net.first.ToVector<float>();
    guard.ClipAndStep(optimizer, 1.0, {});
    EXPECT_EQ(net.first.ToVector<float>() == before, i >= 4);
  };
  ExpectTheSame(update);
}

// Steps that clipping holds back don't count. The result is as if they had not been made.
TEST_F(UpdateGraphsTest, StepsThatAreHeldBackDoNotCount) {
  const auto train = [](const Make& make, bool graphs, bool bad_steps) {
    Net net(DType::kF32);
    net.To(CheckedDevice());
    const auto optimizer = make(net);
    optimizer->UseGraphs(graphs);
    int64_t count = 0;
    for (int i = 0; i < 12; ++i) {
      const bool bad = i < 2 || i == 6;
      if (bad && !bad_steps) continue;
      Backward(net.Loss(true));
      if (bad) net.second.MaterializeGrad().Fill(std::numeric_limits<float>::quiet_NaN());
      if (i != 8) ClipGradNorm(*optimizer, 0.01);
      optimizer->Step();
      optimizer->ZeroGrad();
      count += !bad;
      if (i > 3) {
        EXPECT_EQ(optimizer->step_count(), count) << i;
      }
    }
    EXPECT_EQ(optimizer->graph_statistics().replayed > 0, graphs);
    return optimizer->arena().values().ToVector<float>();
  };
  for (size_t m = 0; m < kMakes.size(); ++m) {
    SCOPED_TRACE("optimizer " + std::to_string(m));
    const Floats expected = train(kMakes[m], false, false);
    EXPECT_EQ(train(kMakes[m], false, true), expected);
    EXPECT_EQ(train(kMakes[m], true, true), expected);
  }
}

TEST_F(UpdateGraphsTest, ClipAndStepWaitsWhileGradientsAccumulate) {
  Net net(DType::kF32);
  net.To(CheckedDevice());
  const auto optimizer = kMakes[0](net);
  const auto may_step = std::make_shared<bool>(false);
  optimizer->StepOnlyIf(may_step);
  StepGuard guard;
  const Floats before = net.first.ToVector<float>();
  Backward(net.Loss(true));
  EXPECT_FALSE(guard.ClipAndStep(*optimizer, 1.0, {}).defined());
  EXPECT_EQ(net.first.ToVector<float>(), before);
  *may_step = true;
  EXPECT_GT(guard.ClipAndStep(*optimizer, 1.0, {}).Item(), 0);
  EXPECT_NE(net.first.ToVector<float>(), before);
}

// The result of training with a loss scaler.
struct Scaled {
  Floats values;
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
Scaled TrainScaled(const Make& make, const ScaledLoop& loop) {
  Net net(DType::kF32);
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

// The device alone decides which steps are skipped. With graphs and without, the results are the
// same as if the host looks after each step. They are also those of training on the host.
TEST_F(UpdateGraphsTest, LossScaling) {
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
  for (size_t m = 0; m < kMakes.size(); ++m) {
    for (const auto& after : {ScaledLoop().after, decltype(ScaledLoop().after)(every_other_step),
                              decltype(ScaledLoop().after)(two_for_one),
                              decltype(ScaledLoop().after)(rates_that_are_set),
                              decltype(ScaledLoop().after)(another_schedule)}) {
      const Scaled host = TrainScaled(kMakes[m], {.device = {}, .after = after});
      EXPECT_EQ(host.num_skipped, 5);
      EXPECT_EQ(host.step_count, 11);
      const Device device = CheckedDevice();
      const Scaled asked = TrainScaled(kMakes[m], {.device = device, .asks = true, .after = after});
      const Scaled late = TrainScaled(kMakes[m], {.device = device, .after = after});
      const Scaled graphs =
          TrainScaled(kMakes[m], {.device = device, .graphs = true, .after = after});
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

TEST_F(UpdateGraphsTest, AGuardLetsOverflowsPass) {
  const auto train = [](bool graphs, bool guarded) {
    StepGuard guard;
    return TrainScaled(kMakes[1], {.device = CheckedDevice(),
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

// In a loop around a few different updates, each gets its graph. If there are many, only those used
// last can have one.
TEST_F(UpdateGraphsTest, ManyUpdatesThatDiffer) {
  Net net(DType::kF32);
  net.To(CheckedDevice());
  const auto optimizer = kMakes[0](net);
  optimizer->UseGraphs(true);
  std::vector<StepGuard> guards(40);  // each with a latch of its own
  for (int round = 0; round < 3; ++round) {
    for (StepGuard& guard : guards) {
      Backward(net.Loss(true));
      guard.ClipAndStep(*optimizer, 1.0, {});
      optimizer->ZeroGrad();
    }
  }
  EXPECT_EQ(optimizer->graph_statistics().eager, 120);
  for (int i = 0; i < 10; ++i) {
    Backward(net.Loss(true));
    guards[static_cast<size_t>(i % 5)].ClipAndStep(*optimizer, 1.0, {});
    optimizer->ZeroGrad();
  }
  EXPECT_EQ(optimizer->graph_statistics().recorded, 5);
  EXPECT_EQ(optimizer->step_count(), 130);
}

}  // namespace
}  // namespace lathe
