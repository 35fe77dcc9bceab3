// Training passes as CUDA graphs (distributed/batch_passes.h), compared with the same passes run
// eagerly on one device. They give the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "lathe/core/autograd.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/tiny_bert.h"
#include "lathe/tests/training_outcome.h"

namespace lathe {
namespace {

struct Set {
  std::string precision = "no";
  int64_t accumulation = 1;
  bool checkpointing = false;
  int64_t longest = 7, samples = 28;
  bool graphs = true;
  // Called between steps.
  std::function<void(int, SequenceClassifier&, Optimizer&)> between = nullptr;
  std::function<Tensor(SequenceClassifier&, const Batch&)> forward = nullptr;
};

class StepGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }

  // Products are deterministic, because results are compared bit for bit.
  const DeterministicGemms deterministic_;

  // Trains for three epochs in batches of 8, shuffled, with dropout.
  static Outcome Train(const Set& set) {
    Accelerator accelerator({.gradient_accumulation_steps = set.accumulation,
                             .mixed_precision = set.precision,
                             .grad_scaler = {.init_scale = 1e3},
                             .device = "cuda",
                             .step_graphs = set.graphs});
    const auto model = TinyBert();
    AdamW optimizer(model->Parameters(), {.lr = 1e-2});
    DataLoader train(TinyData(set.samples, set.longest), {.batch_size = 8, .shuffle = true});
    const auto scheduler =
        GetScheduler("linear", optimizer, {.num_training_steps = 3 * train.size()});
    accelerator.Prepare(train, *model, optimizer, *scheduler);
    model->SetGradientCheckpointing(set.checkpointing);
    int step = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
      model->Train();
      for (const Batch& batch : train) {
        const auto accumulation = accelerator.Accumulate(*model);
        const Tensor loss = accelerator.Backward(*model, batch, [&](const Batch& b) {
          return set.forward ? set.forward(*model, b) : model->Forward(b).loss;
        });
        EXPECT_EQ(loss.device(), accelerator.device());
        EXPECT_FALSE(loss.requires_grad());
        accelerator.ClipGradNorm(optimizer, 1.0);
        optimizer.Step();
        scheduler->Step();
        optimizer.ZeroGrad();
        if (set.between) set.between(++step, *model, optimizer);
      }
    }
    return {accelerator.TakeLosses(), optimizer.arena().values().ToVector<float>(),
            accelerator.graph_statistics()};
  }

  // Trains with graphs and without, and expects the same results.
  static GraphStatistics ExpectTheSame(Set set) {
    // The last batch has fewer sequences, but its graph has as many as the others. Then a GPU's
    // products may add up in another order.
    if (FindDeviceBackend()->DescribeBuild() != "emulated CUDA") set.samples = 32;
    set.graphs = false;
    const Outcome plain = Train(set);
    set.graphs = true;
    const Outcome graphs = Train(set);
    EXPECT_EQ(graphs.losses, plain.losses);
    EXPECT_EQ(graphs.values, plain.values);
    EXPECT_EQ(plain.statistics.replayed + plain.statistics.eager, 0);
    EXPECT_EQ(graphs.statistics.replayed + graphs.statistics.eager, 12);
    return graphs.statistics;
  }
};

TEST_F(StepGraphsTest, SameBitsInEveryPrecision) {
  for (const std::string precision : {"no", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const GraphStatistics statistics = ExpectTheSame({.precision = precision});
    // Batches of 8 share one graph with those of 4 at the end of an epoch.
    EXPECT_EQ(statistics.recorded, 1);
    EXPECT_GE(statistics.replayed, 8);
  }
}

// By default products may add up in any order, and compute biases' gradients in their epilogues.
TEST_F(StepGraphsTest, ProductsInAnyOrder) {
  UseDeterministicGemms(false);
  for (const std::string precision : {"no", "bf16"}) {
    SCOPED_TRACE(precision);
    const Outcome plain = Train({.precision = precision, .graphs = false});
    const Outcome graphs = Train({.precision = precision});
    ASSERT_EQ(graphs.losses.size(), plain.losses.size());
    for (size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(graphs.losses[i], plain.losses[i], precision == "no" ? 1e-4 : 2e-2) << i;
    }
    EXPECT_GE(graphs.statistics.replayed, 8);
  }
}

TEST_F(StepGraphsTest, SameBitsWithAccumulationAndCheckpoints) {
  // The first batch of a window writes gradients, the others add to them.
  const GraphStatistics statistics = ExpectTheSame({.accumulation = 2});
  EXPECT_GE(statistics.recorded, 2);
  ExpectTheSame({.precision = "bf16", .accumulation = 3, .checkpointing = true});
}

TEST_F(StepGraphsTest, SameBitsForManyShapes) {
  const GraphStatistics statistics = ExpectTheSame({.longest = 97});
  EXPECT_GE(statistics.replayed, 2);
}

TEST_F(StepGraphsTest, WeightsThatAreSetInBetween) {
  for (const std::string precision : {"no", "bf16"}) {
    const auto between = [](int step, SequenceClassifier& model, Optimizer&) {
      if (step % 4 != 0) return;
      for (Parameter& p : model.Parameters()) {
        if (p.name.ends_with("query.weight")) p.tensor.Fill(0.01 * step);
      }
    };
    ExpectTheSame({.precision = precision, .between = between});
  }
}

TEST_F(StepGraphsTest, ModesAndFrozenParameters) {
  const auto between = [](int step, SequenceClassifier& model, Optimizer&) {
    model.Train(step % 5 != 0);
    model.SetGradientCheckpointing(step % 7 == 0);
    for (Parameter& p : model.Parameters()) {
      if (p.name.find("attention") != std::string::npos) p.tensor.SetRequiresGrad(step % 6 < 3);
    }
  };
  ExpectTheSame({.between = between});
}

TEST_F(StepGraphsTest, GradientsThatAreTakenAwayOrChanged) {
  const auto between = [](int step, SequenceClassifier& model, Optimizer& optimizer) {
    std::vector<Parameter> parameters = model.Parameters();
    if (step == 9) parameters[3].tensor.SetGrad({});
    if (step == 11) optimizer.arena().grads();
    if (step == 13) ClipGradNorm(optimizer, 1e-3);
  };
  ExpectTheSame({.between = between});
}

// Two models take turns after graphs of the first were recorded. Tensors of the second that outlive
// a pass don't lie in memory that those graphs write.
TEST_F(StepGraphsTest, ModelsThatComeLater) {
  const auto train = [](const std::string& precision, bool head_only, bool graphs) {
    Accelerator accelerator({.mixed_precision = precision,
                             .grad_scaler = {.init_scale = 1e3},
                             .device = "cuda",
                             .step_graphs = graphs});
    std::vector<std::shared_ptr<SequenceClassifier>> models;
    std::vector<std::unique_ptr<AdamW>> optimizers;
    for (int m = 0; m < 2; ++m) {
      models.push_back(TinyBert());
      std::vector<Parameter> updated;
      for (const Parameter& p : models[m]->Parameters()) {
        if (!head_only || p.name.starts_with("classifier")) updated.push_back(p);
      }
      optimizers.push_back(std::make_unique<AdamW>(updated, AdamWOptions{.lr = 1e-2}));
      accelerator.Prepare(*models[m], *optimizers[m]);
      models[m]->Train();
    }
    int64_t step = 0;
    const auto pass = [&](size_t m) {
      std::vector<std::vector<int32_t>> sequences;
      for (int32_t b = 0; b < 8; ++b) {
        sequences.emplace_back(static_cast<size_t>(5 + b), static_cast<int32_t>(49 - b));
      }
      Batch batch =
          Batch::Pack(sequences, {}, Tensor::FromVector<int64_t>({0, 1, 0, 1, 1, 0, 1, 0}));
      batch.step = step++;
      accelerator.Backward(*models[m], batch,
                           [&](const Batch& b) { return models[m]->Forward(b).loss; });
      optimizers[m]->Step();
      optimizers[m]->ZeroGrad();
    };
    for (int i = 0; i < 5; ++i) pass(0);
    for (int i = 0; i < 6; ++i) pass(1), pass(0);
    Outcome outcome = {accelerator.TakeLosses(), {}, accelerator.graph_statistics()};
    for (const auto& model : models) {
      for (Parameter& p : model->Parameters()) {
        for (const Tensor& t : {p.tensor, p.tensor.MaterializeGrad()}) {
          const std::vector<float> values = t.ToVector<float>();
          outcome.values.insert(outcome.values.end(), values.begin(), values.end());
        }
      }
    }
    return outcome;
  };
  const std::vector<std::pair<std::string, bool>> cases = {
      {"no", true}, {"bf16", false}, {"fp16", true}};
  for (const auto& [precision, head_only] : cases) {
    SCOPED_TRACE(precision + (head_only ? ", the head" : ""));
    const Outcome plain = train(precision, head_only, false);
    const Outcome graphs = train(precision, head_only, true);
    EXPECT_EQ(graphs.losses, plain.losses);
    EXPECT_TRUE(graphs.values == plain.values);
    EXPECT_EQ(graphs.statistics.recorded, 2);
    EXPECT_GE(graphs.statistics.replayed, 12);
  }
}

// A graph can't write a gradient that each pass makes anew, so such passes run eagerly.
TEST_F(StepGraphsTest, GradientsThatEachPassMakes) {
  const auto train = [](bool graphs) {
    Accelerator accelerator({.device = "cuda", .step_graphs = graphs});
    const auto model = TinyBert();
    std::vector<Parameter> head, others;
    for (const Parameter& p : model->Parameters()) {
      (p.name.starts_with("classifier") ? head : others).push_back(p);
    }
    AdamW optimizer(head, {.lr = 1e-2});
    accelerator.Prepare(*model, optimizer);
    model->Train();
    Outcome outcome;
    for (int64_t step = 0; step < 5; ++step) {
      Batch batch = Batch::Pack({{5, 6, 7}, {1, 2}}, {}, Tensor::FromVector<int64_t>({0, 1}));
      batch.step = step;
      accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
      for (Parameter& p : others) {
        const std::vector<float> values = p.tensor.grad().ToVector<float>();
        outcome.values.insert(outcome.values.end(), values.begin(), values.end());
        p.tensor.SetGrad({});
      }
      optimizer.Step();
      optimizer.ZeroGrad();
    }
    outcome.losses = accelerator.TakeLosses();
    outcome.statistics = accelerator.graph_statistics();
    return outcome;
  };
  const Outcome plain = train(false), graphs = train(true);
  ExpectNear(graphs, plain, 1e-6);
  EXPECT_EQ(graphs.statistics.recorded, 0);
  EXPECT_EQ(graphs.statistics.eager, 5);
}

TEST_F(StepGraphsTest, WhatReadsNumbersRunsAsItIs) {
  const auto forward = [](SequenceClassifier& model, const Batch& batch) {
    const Tensor loss = model.Forward(batch).loss;
    EXPECT_TRUE(std::isfinite(loss.Item()));
    return loss;
  };
  const GraphStatistics statistics = ExpectTheSame({.forward = forward});
  EXPECT_EQ(statistics.recorded, 0);
  EXPECT_EQ(statistics.replayed, 0);
}

// A repeated pass doesn't check numbers, and yet bad ones are reported.
TEST_F(StepGraphsTest, BadNumbersAreNamedAllTheSame) {
  Accelerator accelerator({.device = "cuda"});
  const auto model = TinyBert();
  AdamW optimizer(model->Parameters(), {.lr = 0});
  accelerator.Prepare(*model, optimizer);
  model->Train();
  int64_t step = 0;
  const auto train = [&](std::vector<int32_t> ids, int64_t label, int32_t type = 0) {
    Batch batch = Batch::Pack({ids, {1, 2}}, {std::vector<int32_t>(ids.size(), type), {0, 0}},
                              Tensor::FromVector<int64_t>({label, -100}));
    batch.step = step++;
    accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
    optimizer.ZeroGrad();
  };
  const auto what = [&](std::vector<int32_t> ids, int64_t label, int32_t type = 0) {
    try {
      train(std::move(ids), label, type);
    } catch (const Error& e) {
      optimizer.ZeroGrad();
      return e.message();
    }
    return std::string("no error");
  };
  for (int i = 0; i < 4; ++i) train({49, 3}, 1, 1);
  EXPECT_GE(accelerator.graph_statistics().replayed, 2);
  EXPECT_EQ(what({50, 3}, 1), "[embedding] id 50 at row 0 of table 0 is outside [0, 50)");
  EXPECT_EQ(what({-1, 3}, 1), "[embedding] id -1 at row 0 of table 0 is outside [0, 50)");
  EXPECT_EQ(what({4, 3}, 1, 2), "[embedding] id 2 at row 0 of table 1 is outside [0, 2)");
  EXPECT_EQ(what({4, 3}, 2), "[cross_entropy] the label of row 0 is 2 but there are 2 classes");
  EXPECT_EQ(what({4, 3}, -1), "[cross_entropy] the label of row 0 is -1 but there are 2 classes");
  const int64_t replayed = accelerator.graph_statistics().replayed;
  EXPECT_EQ(what({4, 3}, 0), "no error");
  EXPECT_EQ(accelerator.graph_statistics().replayed, replayed + 1);
}

TEST_F(StepGraphsTest, AnotherModelInTheSamePlace) {
  Accelerator accelerator({.device = "cuda"});
  std::vector<float> first;
  for (int round = 0; round < 3; ++round) {
    const auto model = TinyBert({}, round + 2);
    AdamW optimizer(model->Parameters(), {.lr = 1e-2});
    accelerator.Prepare(*model, optimizer);
    for (int64_t step = 0; step < 4; ++step) {
      Batch batch = Batch::Pack({{5, 6, 7}, {1, 2}}, {}, Tensor::FromVector<int64_t>({0, 1}));
      batch.step = step;
      Tensor plain;
      {
        NoGradGuard no_grad;
        plain = model->Forward(batch).loss;
      }
      const Tensor loss = accelerator.Backward(
          *model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
      EXPECT_EQ(loss.Item(), plain.Item());
      optimizer.Step();
      optimizer.ZeroGrad();
    }
  }
}

}  // namespace
}  // namespace lathe
