// Training passes as CUDA graphs (distributed/step_graphs.h) against the same passes run as they
// are, on one device: the same bits.
#include "lathe/distributed/step_graphs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

using Losses = std::vector<double>;

std::shared_ptr<SequenceClassifier> MakeModel(int64_t num_labels = 2) {
  return AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromJson({{"architectures", {"BertForSequenceClassification"}},
                                  {"model_type", "bert"},
                                  {"vocab_size", 50},
                                  {"hidden_size", 16},
                                  {"num_hidden_layers", 1},
                                  {"num_attention_heads", 2},
                                  {"intermediate_size", 36},
                                  {"max_position_embeddings", 160},
                                  {"type_vocab_size", 2}}),
      {.num_labels = num_labels});
}

// n sequences of up to `longest` tokens, which begin with their class.
std::shared_ptr<TokenizedDataset> MakeData(int64_t n, int64_t longest, int32_t words = 50) {
  auto data = std::make_shared<TokenizedDataset>();
  data->has_labels = true;
  data->num_labels = 2;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t t = 0; t <= i * 5 % longest; ++t) {
      data->input_ids.push_back(static_cast<int32_t>((t == 0 ? i % 2 : i * 7 + t * 3) % words));
    }
    data->token_type_ids.resize(data->input_ids.size());
    data->offsets.push_back(std::ssize(data->input_ids));
    data->classes.push_back(i % 2);
  }
  return data;
}

struct Set {
  std::string precision = "no";
  int64_t accumulation = 1;
  bool checkpointing = false;
  int64_t longest = 7;
  bool graphs = true;
  // Between steps.
  std::function<void(int, SequenceClassifier&, Optimizer&)> between = nullptr;
  std::function<Tensor(SequenceClassifier&, const Batch&)> forward = nullptr;
};

struct Outcome {
  Losses losses;
  std::vector<float> values;
  StepGraphStatistics statistics;
};

class StepGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }

  // Three epochs of 28 samples in batches of 8, shuffled, with dropout.
  static Outcome Train(const Set& set) {
    Accelerator accelerator({.gradient_accumulation_steps = set.accumulation,
                             .mixed_precision = set.precision,
                             .grad_scaler = {.init_scale = 1e3},
                             .device = "cuda",
                             .step_graphs = set.graphs});
    const auto model = MakeModel();
    AdamW optimizer(model->Parameters(), {.lr = 1e-2});
    DataLoader train(MakeData(28, set.longest), {.batch_size = 8, .shuffle = true});
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

  // With graphs and without.
  static StepGraphStatistics ExpectTheSame(Set set) {
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

TEST(GraphShapes, AreFew) {
  EXPECT_EQ(GraphRows(1), 128);
  EXPECT_EQ(GraphRows(128), 128);
  EXPECT_EQ(GraphRows(129), 256);
  EXPECT_EQ(GraphRows(816), 896);
  EXPECT_EQ(GraphRows(6500), 6656);
  EXPECT_EQ(GraphRows(16384), 16384);
  EXPECT_EQ(GraphRows(16385), 17408);
  for (int64_t tokens = 1; tokens < 40000; tokens += 7) {
    const int64_t rows = GraphRows(tokens);
    EXPECT_GE(rows, tokens);
    EXPECT_LT(rows - tokens, std::max<int64_t>(128, tokens / 16 + 1));
    EXPECT_EQ(rows % 128, 0);
    EXPECT_GE(GraphRows(tokens + 1), rows);
  }
  EXPECT_EQ(GraphLength(1), 64);
  EXPECT_EQ(GraphLength(65), 128);
  EXPECT_EQ(GraphLength(512), 512);
}

TEST_F(StepGraphsTest, SameBitsInEveryPrecision) {
  for (const std::string precision : {"no", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const StepGraphStatistics statistics = ExpectTheSame({.precision = precision});
    // Batches of 8, and of 4 at the end of an epoch.
    EXPECT_EQ(statistics.recorded, 2);
    EXPECT_GE(statistics.replayed, 6);
  }
}

TEST_F(StepGraphsTest, SameBitsWithAccumulationAndCheckpoints) {
  // The first batch of a window writes gradients, the others add to them.
  const StepGraphStatistics statistics = ExpectTheSame({.accumulation = 2});
  EXPECT_GE(statistics.recorded, 2);
  ExpectTheSame({.precision = "bf16", .accumulation = 3, .checkpointing = true});
}

TEST_F(StepGraphsTest, SameBitsForManyShapes) {
  const StepGraphStatistics statistics = ExpectTheSame({.longest = 97});
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

TEST_F(StepGraphsTest, WhatReadsNumbersRunsAsItIs) {
  const auto forward = [](SequenceClassifier& model, const Batch& batch) {
    const Tensor loss = model.Forward(batch).loss;
    EXPECT_TRUE(std::isfinite(loss.Item()));
    return loss;
  };
  const StepGraphStatistics statistics = ExpectTheSame({.forward = forward});
  EXPECT_EQ(statistics.recorded, 0);
  EXPECT_EQ(statistics.replayed, 0);
}

// A replayed pass doesn't look at numbers.
TEST_F(StepGraphsTest, BadNumbersAreNamedAllTheSame) {
  Accelerator accelerator({.device = "cuda"});
  const auto model = MakeModel();
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
    const auto model = MakeModel(round + 2);
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
