// Optimizers' updates as CUDA graphs (optim/graphs/update_graphs.h), compared with the same
// launches one by one on one device. They give the same bits.
#include "lathe/optim/graphs/update_graphs.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/update_graphs_testing.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

constexpr int kSteps = 10;
// Called between Backward and ZeroGrad of step i, to make the update.
using Update = std::function<void(int i, TwoLayers& net, Optimizer& optimizer)>;
// Called before the backward pass of step i.
using Before = std::function<void(int i, TwoLayers& net, Optimizer& optimizer)>;

struct Outcome {
  Floats values;
  GraphStatistics statistics;
};

class UpdateGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }

  static Outcome Train(bool graphs, DType compute, const MakeOptimizer& make, const Update& update,
                       const Before& before, const std::function<bool(int)>& with_third) {
    TwoLayers net(compute);
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
    for (size_t i = 0; i < kMakeOptimizers.size(); ++i) {
      const Outcome plain = Train(false, compute, kMakeOptimizers[i], update, before, with_third);
      const Outcome graphs = Train(true, compute, kMakeOptimizers[i], update, before, with_third);
      EXPECT_EQ(graphs.values, plain.values) << "optimizer " << i;
      EXPECT_EQ(plain.statistics.replayed, 0);
      EXPECT_GT(graphs.statistics.replayed, 0) << "optimizer " << i;
      statistics = graphs.statistics;
    }
    return statistics;
  }
};

void PlainStep(int, TwoLayers&, Optimizer& optimizer) { optimizer.Step(); }
void ClippedStep(int, TwoLayers&, Optimizer& optimizer) {
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
        graphs, DType::kBF16, kMakeOptimizers[1],
        [&](int i, TwoLayers&, Optimizer& optimizer) {
          const Tensor losses = Tensor::Full({2}, i, DType::kF32, CheckedDevice());
          norms.push_back(guard.ClipAndStep(optimizer, i < 6 ? 0.01 : 0.001, losses));
        },
        nullptr, [](int) { return true; });
  };
  const Outcome apart = Train(
      false, DType::kBF16, kMakeOptimizers[1],
      [&](int i, TwoLayers&, Optimizer& optimizer) {
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
  ExpectTheSame([](int i, TwoLayers& net, Optimizer& optimizer) {
    if (i % 3 != 0) ClipGradNorm(optimizer, 0.1 / (i + 1));
    if (i % 4 == 1) net.second.MaterializeGrad();  // multiplies it by the factor
    if (i % 5 == 3) ClipGradNorm(optimizer, 1e-4);
    if (i % 5 == 4) ClipGradValue(optimizer, 1e-3);
    optimizer.Step();
  });
}

TEST_F(UpdateGraphsTest, FrozenParametersAndThoseWithoutGradient) {
  const auto freeze = [](int i, TwoLayers& net, Optimizer&) {
    net.first.SetRequiresGrad(i % 5 != 2);
    net.second.SetRequiresGrad(i < 4 || i > 6);
  };
  ExpectTheSame(ClippedStep, freeze, DType::kF32, [](int i) { return i % 4 == 0; });
}

TEST_F(UpdateGraphsTest, RatesWeightsAndGradientsThatAreSet) {
  const auto set = [](int i, TwoLayers& net, Optimizer& optimizer) {
    if (i == 3) optimizer.SetLr(optimizer.num_groups() - 1, 0.3);
    if (i == 5) net.first.Fill(0.01);
    if (i == 7) net.second.SetGrad(Tensor());
  };
  for (const DType compute : {DType::kF32, DType::kBF16}) ExpectTheSame(ClippedStep, set, compute);
}

TEST_F(UpdateGraphsTest, AModelThatMovesAway) {
  if (CheckedDevice().is_cpu()) GTEST_SKIP() << "there is one device";
  const auto move = [](int i, TwoLayers& net, Optimizer& optimizer) {
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
  const auto update = [&](int i, TwoLayers& net, Optimizer& optimizer) {
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
  const auto train = [](const MakeOptimizer& make, bool graphs, bool bad_steps) {
    TwoLayers net(DType::kF32);
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
  for (size_t m = 0; m < kMakeOptimizers.size(); ++m) {
    SCOPED_TRACE("optimizer " + std::to_string(m));
    const Floats expected = train(kMakeOptimizers[m], false, false);
    EXPECT_EQ(train(kMakeOptimizers[m], false, true), expected);
    EXPECT_EQ(train(kMakeOptimizers[m], true, true), expected);
  }
}

TEST_F(UpdateGraphsTest, ClipAndStepWaitsWhileGradientsAccumulate) {
  TwoLayers net(DType::kF32);
  net.To(CheckedDevice());
  const auto optimizer = kMakeOptimizers[0](net);
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

// A few different updates that take turns each get a graph. If there are many, only those used last
// keep one.
TEST_F(UpdateGraphsTest, ManyUpdatesThatDiffer) {
  TwoLayers net(DType::kF32);
  net.To(CheckedDevice());
  const auto optimizer = kMakeOptimizers[0](net);
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
