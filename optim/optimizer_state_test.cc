// Tests that an optimizer, a schedule and a scaler go on from their states with the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/layers.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/optimizer_testing.h"
#include "lathe/optim/schedules.h"

namespace lathe {
namespace {

// A table of which each step uses other rows, a parameter without decay, and a frozen one.
struct Toy {
  explicit Toy(bool sgd, double weight_decay = 0, double momentum = 0.9) {
    std::vector<float> table(40 * 300), bias(500), frozen(3, 2);
    for (size_t i = 0; i < table.size(); ++i) table[i] = std::sin(static_cast<float>(i));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = std::cos(static_cast<float>(i));
    parameters = {MakeParameter("table", table, {40, 300}), MakeParameter("bias", bias, {500}),
                  MakeParameter("frozen", frozen, {3})};
    parameters[0].is_table = true;
    parameters[2].tensor.SetRequiresGrad(false);
    if (sgd) {
      optimizer = std::make_unique<SGD>(
          parameters, SGDOptions{.lr = 0.1, .momentum = momentum, .weight_decay = weight_decay});
    } else {
      optimizer = std::make_unique<AdamW>(parameters,
                                          AdamWOptions{.lr = 0.1, .weight_decay = weight_decay});
    }
    scheduler =
        GetScheduler("cosine", *optimizer, {.num_warmup_steps = 2, .num_training_steps = 10});
  }

  void Step(int step) {
    const Tensor rows = EmbeddingSum({Tensor::FromVector<int32_t>({step % 7, (step * 3) % 40})},
                                     {parameters[0].tensor});
    Backward(Mean(rows));
    SetGrad(parameters[1], std::vector<float>(500, static_cast<float>(step + 1) / 9));
    ClipGradNorm(*optimizer, 0.5);
    optimizer->Step();
    scheduler->Step();
    optimizer->ZeroGrad();
  }

  std::vector<float> Values() const {
    std::vector<float> all;
    for (const Parameter& p : parameters) {
      const std::vector<float> values = p.tensor.ToVector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<Parameter> parameters;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Scheduler> scheduler;
};

class OptimizerStateTest : public testing::TestWithParam<std::pair<bool, double>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerStateTest,
                         testing::Values(std::pair(false, 0.0), std::pair(false, 0.1),
                                         std::pair(true, 0.0)));

TEST_P(OptimizerStateTest, GoesOnWithTheSameBits) {
  const auto [sgd, decay] = GetParam();
  for (const int cut : {0, 1, 4}) {
    Toy whole(sgd, decay), resumed(sgd, decay);
    for (int step = 0; step < cut; ++step) whole.Step(step);
    StateDict of_optimizer, of_scheduler;
    CopyState(whole.optimizer->StateDict(), of_optimizer);
    of_scheduler = whole.scheduler->StateDict();
    for (size_t i = 0; i < resumed.parameters.size(); ++i)
      Tensor(resumed.parameters[i].tensor).CopyFrom(whole.parameters[i].tensor);
    resumed.scheduler->LoadStateDict(of_scheduler);
    resumed.optimizer->LoadStateDict(of_optimizer);
    EXPECT_EQ(resumed.optimizer->step_count(), cut);
    EXPECT_EQ(resumed.optimizer->used_lr(), whole.optimizer->used_lr());
    for (int step = cut; step < 8; ++step) {
      whole.Step(step);
      resumed.Step(step);
      ASSERT_EQ(whole.Values(), resumed.Values()) << "step " << step << " after " << cut;
      EXPECT_EQ(whole.optimizer->lr(), resumed.optimizer->lr());
    }
  }
}

TEST(OptimizerState, KeepsOnlyWhatWasTrained) {
  Toy toy(/*sgd=*/false);
  toy.Step(0);
  const StateDict state = toy.optimizer->StateDict();
  std::vector<std::string> names;
  for (const StateTensor& tensor : state.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"exp_avg/bias", "exp_avg/table", "exp_avg_sq/bias",
                                             "exp_avg_sq/table"}));
  EXPECT_EQ(state.values.at("steps").at("frozen"), 0);
}

TEST(OptimizerState, RefusesWhatDoesNotFit) {
  Toy toy(/*sgd=*/false), other(/*sgd=*/false);
  toy.Step(0);
  const StateDict state = toy.optimizer->StateDict();
  const auto error = [&](const StateDict& changed) -> std::string {
    try {
      other.optimizer->LoadStateDict(changed);
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  StateDict changed = state;
  changed.values.erase("rates");
  EXPECT_EQ(error(changed), "[optimizer] the state has no \"rates\"");
  changed = state;
  changed.values["steps"].erase("bias");
  EXPECT_EQ(error(changed), "[optimizer] the state has no parameter bias");
  changed = state;
  std::erase_if(changed.tensors, [](const auto& t) { return t.name == "exp_avg/bias"; });
  EXPECT_EQ(error(changed), "[optimizer] the state has no element 0 of exp_avg/bias");
  changed = state;
  for (StateTensor& t : changed.tensors) {
    if (t.name == "exp_avg/bias") t.shape = {250, 2};
  }
  EXPECT_EQ(error(changed),
            "[optimizer] the state's exp_avg/bias has shape [250, 2] but the parameter [500]");
  EXPECT_EQ(error(state), "no error");
}

// SGD without momentum keeps nothing. It must not drop AdamW's moments without a word.
TEST(OptimizerState, RefusesTensorsThatNoBufferTakes) {
  Toy toy(/*sgd=*/false), plain(/*sgd=*/true, /*weight_decay=*/0, /*momentum=*/0);
  toy.Step(0);
  StateDict state;
  CopyState(toy.optimizer->StateDict(), state);
  try {
    plain.optimizer->LoadStateDict(state);
    ADD_FAILURE() << "the moments were dropped";
  } catch (const Error& e) {
    EXPECT_TRUE(e.message().starts_with("[optimizer] the state has exp_avg")) << e.message();
    EXPECT_TRUE(e.message().ends_with(", which this optimizer does not keep")) << e.message();
  }
  state.tensors.clear();
  EXPECT_NO_THROW(plain.optimizer->LoadStateDict(state));
}

TEST(SchedulerState, PlateauGoesOn) {
  const auto make = [](Toy& toy) {
    return GetScheduler("reduce_lr_on_plateau", *toy.optimizer, {.factor = 0.5, .patience = 1});
  };
  Toy a(true), b(true);
  const auto first = make(a), second = make(b);
  second->LoadStateDict(first->StateDict());  // before any metric
  for (const double metric : {1.0, 1.1}) first->StepMetric(metric);
  second->LoadStateDict(first->StateDict());
  b.optimizer->LoadStateDict(a.optimizer->StateDict());
  for (const double metric : {1.2, 1.3, 0.9}) {
    first->StepMetric(metric);
    second->StepMetric(metric);
    EXPECT_EQ(first->last_lr(), second->last_lr());
  }
  EXPECT_LT(first->last_lr(), 0.1);
}

TEST(GradScalerState, GoesOn) {
  GradScaler a({.init_scale = 8, .growth_interval = 2});
  a.Update(true);
  a.Update(false);
  GradScaler b;
  b.LoadStateDict(a.StateDict());
  EXPECT_EQ(b.scale(), 4);
  EXPECT_EQ(b.StateDict().values, a.StateDict().values);
}

}  // namespace
}  // namespace lathe
