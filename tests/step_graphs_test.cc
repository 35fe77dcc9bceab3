// Training passes as CUDA graphs (distributed/step_graphs.h), compared with the same passes run
// eagerly on one device. They give the same bits.
#include "lathe/distributed/step_graphs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

using Losses = std::vector<double>;

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

struct Outcome {
  Losses losses;
  std::vector<float> values;
  StepGraphStatistics statistics;
};

void ExpectNear(const Outcome& actual, const Outcome& expected, double tolerance) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance) << "step " << i;
  }
  double furthest = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual.values[i])) << i;
    furthest = std::max(furthest, std::fabs(double{actual.values[i]} - expected.values[i]));
  }
  EXPECT_LE(furthest, 20 * tolerance);  // AdamW divides small gradients by their size
}

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
  static StepGraphStatistics ExpectTheSame(Set set) {
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
  EXPECT_EQ(GraphSequences(1), 8);
  EXPECT_EQ(GraphSequences(8), 8);
  EXPECT_EQ(GraphSequences(9), 16);
  EXPECT_EQ(GraphSequences(32), 32);
  EXPECT_EQ(GraphSequences(250), 256);
  EXPECT_EQ(GraphSequences(257), 272);
  EXPECT_EQ(GraphLength(1), 64);
  EXPECT_EQ(GraphLength(65), 128);
  EXPECT_EQ(GraphLength(512), 512);
}

TEST_F(StepGraphsTest, SameBitsInEveryPrecision) {
  for (const std::string precision : {"no", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const StepGraphStatistics statistics = ExpectTheSame({.precision = precision});
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
  const StepGraphStatistics statistics = ExpectTheSame({.forward = forward});
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

// Returns batches of these numbers of sequences, with varying lengths. labels(n) makes the labels
// of n sequences.
std::vector<Batch> BatchesOf(const std::vector<int64_t>& sizes,
                             const std::function<Tensor(int64_t)>& labels, int64_t longest = 9) {
  std::vector<Batch> batches;
  for (const int64_t size : sizes) {
    const auto n = std::ssize(batches);
    std::vector<std::vector<int32_t>> sequences;
    for (int64_t b = 0; b < size; ++b) {
      sequences.emplace_back();
      for (int64_t t = 0; t <= (b * 53 + n) % longest; ++t) {
        sequences.back().push_back(static_cast<int32_t>((b * 7 + t * 3 + n) % 50));
      }
      sequences[0][0] = 49;  // so the first batch has the largest number
    }
    batches.push_back(Batch::Pack(sequences, {}, labels(size)));
    batches.back().step = n;
  }
  return batches;
}

Tensor Classes(int64_t n) {
  std::vector<int64_t> labels;
  for (int64_t b = 0; b < n; ++b) labels.push_back(b == 3 ? -100 : b % 2);
  return Tensor::FromVector(labels);
}
Tensor Scores(int64_t n) {
  Tensor scores = Tensor::Empty({n});
  for (int64_t b = 0; b < n; ++b) scores.data<float>()[b] = std::sin(static_cast<float>(b)) + 2;
  return scores;
}
Tensor ManyLabels(int64_t n) {
  Tensor labels = Tensor::Empty({n, 3});
  for (int64_t i = 0; i < labels.numel(); ++i) labels.data<float>()[i] = i % 7 < 3;
  return labels;
}

using Forward = std::function<Tensor(SequenceClassifier&, const Batch&)>;
Tensor OwnLoss(SequenceClassifier& model, const Batch& batch) { return model.Forward(batch).loss; }

// Trains on the batches. Without `graphs`, all passes run eagerly.
Outcome TrainOn(const std::vector<Batch>& batches, int64_t num_labels, StepGraphs* graphs,
                const Forward& forward = OwnLoss, DType dtype = DType::kF32) {
  const auto model = TinyBert({}, num_labels);
  AdamW optimizer(model->Parameters(), {.lr = 1e-3});
  model->To(CheckedDevice());
  model->SetComputeDType(dtype);
  model->Train();
  Losses losses;
  for (const Batch& batch : batches) {
    const auto pass = [&](const Batch& b) { return forward(*model, b); };
    Tensor loss;
    if (graphs != nullptr) {
      loss = graphs->Run(*model, batch, 0.5f, pass);
    } else {
      loss = pass(batch);
      Backward(loss, Tensor::Full({}, 0.5, DType::kF32, loss.device()));
    }
    losses.push_back(loss.Item());
    optimizer.Step();
    optimizer.ZeroGrad();
  }
  return {losses, optimizer.arena().values().ToVector<float>(),
          graphs == nullptr ? StepGraphStatistics() : graphs->statistics()};
}

TEST_F(StepGraphsTest, NumbersOfSequencesShareAGraph) {
  const std::vector<int64_t> sizes = {8, 5, 6, 7, 8, 1, 7, 5, 2, 8, 6, 3};
  const struct {
    int64_t num_labels;
    std::function<Tensor(int64_t)> labels;
  } heads[] = {{2, Classes}, {1, Scores}, {3, ManyLabels}};
  for (const auto& [num_labels, labels] : heads) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(std::to_string(num_labels) + " labels, " + ToString(dtype));
      const std::vector<Batch> batches = BatchesOf(sizes, labels);
      StepGraphs graphs(CheckedDevice());
      const Outcome actual = TrainOn(batches, num_labels, &graphs, OwnLoss, dtype);
      const Outcome expected = TrainOn(batches, num_labels, nullptr, OwnLoss, dtype);
      // Products may add up in another order, which bfloat16 shows more.
      ExpectNear(actual, expected, dtype == DType::kF32 ? 1e-6 : 2e-3);
      EXPECT_EQ(actual.statistics.recorded, 1);
      // The first pass finds fresh gradients, which counts as another shape.
      EXPECT_EQ(actual.statistics.eager, 2);
      EXPECT_EQ(actual.statistics.replayed, 10);
    }
  }
}

// Surplus sequences need rows of their own if tokens fill all rows.
TEST_F(StepGraphsTest, SurplusSequencesBesideFullRows) {
  const auto batches = [] {
    std::vector<Batch> all;
    for (int i = 0; i < 6; ++i) {
      const int64_t n = i % 2 == 0 ? 8 : 4;
      const std::vector<std::vector<int32_t>> sequences(static_cast<size_t>(n),
                                                        std::vector<int32_t>(128 / n, 7));
      all.push_back(Batch::Pack(sequences, {}, Classes(n)));
      all.back().step = i;
    }
    return all;
  }();
  StepGraphs graphs(CheckedDevice());
  const Outcome actual = TrainOn(batches, 2, &graphs);
  ExpectNear(actual, TrainOn(batches, 2, nullptr), 1e-6);
  EXPECT_EQ(actual.statistics.recorded, 2) << "of 128 and of 256 rows";
}

// A loss that isn't the model's own is computed for as many sequences as the batch has.
TEST_F(StepGraphsTest, OtherLossesMeetNoSurplusSequences) {
  const std::vector<Batch> batches = BatchesOf({8, 5, 6, 8, 5, 6, 8, 5, 6}, Scores);
  const Forward twice = [](SequenceClassifier& model, const Batch& batch) {
    return Scale(model.Forward(batch).loss, 2);
  };
  const Forward of_logits = [](SequenceClassifier& model, const Batch& batch) {
    const Tensor logits = model.Forward(batch).logits;
    EXPECT_EQ(logits.dim(0), batch.size());
    return Mean(Mul(logits, logits));
  };
  // Takes the model's own loss, but checks a count that surplus sequences don't fit.
  const Forward with_numbers = [](SequenceClassifier& model, const Batch& batch) {
    const SequenceClassifierOutput out = model.Forward(batch);
    Check(out.logits.dim(0) == batch.size(), "test", "not as many as there are");
    return out.loss;
  };
  for (const Forward& forward : {twice, of_logits, with_numbers}) {
    StepGraphs graphs(CheckedDevice());
    const Outcome actual = TrainOn(batches, 1, &graphs, forward);
    const Outcome expected = TrainOn(batches, 1, nullptr, forward);
    EXPECT_EQ(actual.losses, expected.losses);
    EXPECT_EQ(actual.values, expected.values);
    EXPECT_EQ(actual.statistics.recorded, 3);
    EXPECT_EQ(actual.statistics.replayed, 5);
  }
}

TEST_F(StepGraphsTest, ShapesBeyondTheMostGiveWay) {
  // Three shapes come in turn, with room for two, so each is recorded anew.
  std::vector<Batch> batches;
  for (const int64_t longest : {150, 70, 3, 150, 70, 3}) {
    for (Batch& batch : BatchesOf({8, 7, 8, 8}, Classes, longest)) batches.push_back(batch);
  }
  for (size_t i = 0; i < batches.size(); ++i) batches[i].step = static_cast<int64_t>(i);
  StepGraphs few(CheckedDevice(), nullptr, 2), many(CheckedDevice());
  const Outcome expected = TrainOn(batches, 2, nullptr);
  const Outcome with_few = TrainOn(batches, 2, &few), with_many = TrainOn(batches, 2, &many);
  ExpectNear(with_few, expected, 1e-6);
  EXPECT_EQ(with_few.losses, with_many.losses);
  EXPECT_EQ(with_few.values, with_many.values);
  EXPECT_GT(with_few.statistics.recorded, with_many.statistics.recorded);
  EXPECT_GT(with_few.statistics.replayed, 0);
}

}  // namespace
}  // namespace lathe
