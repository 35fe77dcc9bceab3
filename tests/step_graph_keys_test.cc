// Shows when a training pass is recorded anew (distributed/batch_passes.h): what tells one graph
// from another, and which one gives way.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/batch_passes.h"
#include "lathe/models/forward_context.h"
#include "lathe/optim/optimizer.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

// A module with a model inside. The outer module's modes are not those of the inner one.
struct Wrapper : Module {
  explicit Wrapper(int64_t num_labels)
      : inner(TinyBert({{"hidden_dropout_prob", 0.3}}, num_labels)) {
    RegisterModule("inner", inner);
  }
  std::shared_ptr<SequenceClassifier> inner;
};

using Forward = std::function<Tensor(SequenceClassifier&, const Batch&)>;
Tensor OwnLoss(SequenceClassifier& model, const Batch& batch) { return model.Forward(batch).loss; }

// Returns 8 sequences, the first with `longest` tokens, the others with 2.
Batch BatchOf(int64_t longest, Tensor labels = {}) {
  std::vector<std::vector<int32_t>> sequences(8);
  for (size_t b = 0; b < 8; ++b) sequences[b].assign(b == 0 ? longest : 2, 7 + b);
  if (!labels.defined()) labels = Tensor::FromVector<int64_t>({0, 1, 1, 0, 1, 0, 0, 1});
  return Batch::Pack(sequences, {}, labels);
}

class StepGraphKeysTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { SetGemmOptions(options_); }

  // A training run whose passes may be graphs.
  struct Line {
    explicit Line(int64_t num_labels = 2, Forward f = OwnLoss, size_t most = 128)
        : model(num_labels), forward(std::move(f)), graphs(CheckedDevice(), nullptr, most) {
      model.To(CheckedDevice());
      optimizer = std::make_unique<AdamW>(model.Parameters(), AdamWOptions{});
      model.Train();
    }

    // Runs one pass for each letter of `expected` and returns what happened: e for eager, r for
    // recorded, p for repeated. Each pass must have the loss of a pass without graphs.
    std::string Run(Batch batch, const std::string& expected) {
      std::string happened;
      for (size_t i = 0; i < expected.size(); ++i) {
        batch.step = step++;
        const GraphStatistics before = graphs.statistics();
        const auto pass = [&](const Batch& b) { return forward(*model.inner, b); };
        const double loss = graphs.Run(model, batch, 1, pass).Item();
        optimizer->ZeroGrad();
        const GraphStatistics after = graphs.statistics();
        happened += after.eager > before.eager ? 'e' : after.recorded > before.recorded ? 'r' : 'p';
        const NoGradGuard no_grad;
        const double plain = forward(*model.inner, batch).Item();
        EXPECT_NEAR(loss, plain, 1e-5 * std::fabs(plain)) << happened << " of " << expected;
      }
      return happened;
    }

    Wrapper model;
    Forward forward;
    BatchPasses graphs;
    std::unique_ptr<AdamW> optimizer;
    int64_t step = 0;
  };

  // Expects that passes are recorded anew after `change`. Then `back` undoes it, and the first
  // graph must be repeated.
  static void ExpectAnotherGraph(const std::string& what, const std::function<void(Line&)>& change,
                                 const std::function<void(Line&)>& back,
                                 const std::string& afterwards = "p") {
    SCOPED_TRACE(what);
    Line line;
    const Batch batch = BatchOf(5);
    EXPECT_EQ(line.Run(batch, "e"), "e") << "fresh gradients are a case of their own";
    EXPECT_EQ(line.Run(batch, "erp"), "erp");
    change(line);
    EXPECT_EQ(line.Run(batch, "erp"), "erp");
    back(line);
    EXPECT_EQ(line.Run(batch, afterwards), afterwards);
  }

 private:
  const GemmOptions options_ = GetGemmOptions();
};

TEST_F(StepGraphKeysTest, ModesOfTheModel) {
  // The copies of parameters stay, and the first graph did without them. So it is recorded once
  // more.
  ExpectAnotherGraph(
      "compute dtype", [](Line& line) { line.model.SetComputeDType(DType::kBF16); },
      [](Line& line) { line.model.SetComputeDType(DType::kF32); }, "erp");
  ExpectAnotherGraph(
      "checkpointing", [](Line& line) { line.model.SetGradientCheckpointing(true); },
      [](Line& line) { line.model.SetGradientCheckpointing(false); });
  ExpectAnotherGraph(
      "training", [](Line& line) { line.model.Eval(); }, [](Line& line) { line.model.Train(); });
}

TEST_F(StepGraphKeysTest, ModesOfModulesWithin) {
  ExpectAnotherGraph(
      "compute dtype", [](Line& line) { line.model.inner->SetComputeDType(DType::kBF16); },
      [](Line& line) { line.model.inner->SetComputeDType(DType::kF32); }, "erp");
  ExpectAnotherGraph(
      "checkpointing", [](Line& line) { line.model.inner->SetGradientCheckpointing(true); },
      [](Line& line) { line.model.inner->SetGradientCheckpointing(false); });
  ExpectAnotherGraph(
      "training", [](Line& line) { line.model.inner->Eval(); },
      [](Line& line) { line.model.inner->Train(); });
}

TEST_F(StepGraphKeysTest, SettingsOfProducts) {
  SetGemmOptions({});
  ExpectAnotherGraph(
      "deterministic", [](Line&) { UseDeterministicGemms(true); },
      [](Line&) { UseDeterministicGemms(false); });
  ExpectAnotherGraph(
      "TF32", [](Line&) { AllowTf32(true); }, [](Line&) { AllowTf32(false); });
  ExpectAnotherGraph(
      "tuning", [](Line&) { TuneGemms(true); }, [](Line&) { TuneGemms(false); });
}

// One forward function takes labels of all kinds; each kind has its own graph.
TEST_F(StepGraphKeysTest, KindsOfLabels) {
  Line line(1, [](SequenceClassifier& model, const Batch& batch) {
    Batch unlabelled = batch;
    unlabelled.labels = {};
    const Tensor logits = model.Forward(unlabelled).logits;
    const Tensor labels = LabelsFor(batch, logits.device()).To(logits.device());
    return Mean(Mul(logits, labels.To(DType::kF32).Reshape({8, 1})));
  });
  const Batch integers = BatchOf(5), numbers = BatchOf(5, Tensor::Full({8}, 0.25)),
              columns = BatchOf(5, Tensor::Full({8, 1}, 0.75));
  EXPECT_EQ(line.Run(integers, "eerp"), "eerp");
  EXPECT_EQ(line.Run(numbers, "erp"), "erp");
  EXPECT_EQ(line.Run(columns, "erp"), "erp");
  EXPECT_EQ(line.Run(numbers, "p"), "p");
  EXPECT_EQ(line.Run(integers, "p"), "p");
}

TEST_F(StepGraphKeysTest, WhatWasUsedTheLongestAgoGivesWay) {
  Line line(2, OwnLoss, /*most=*/2);
  // The largest numbers come first, so that later batches' numbers need no new check.
  const Batch a = BatchOf(5), b = BatchOf(70), c = BatchOf(150);
  EXPECT_EQ(line.Run(c, "e"), "e");  // its gradients are fresh, unlike in other passes
  EXPECT_EQ(line.Run(a, "er"), "er");
  EXPECT_EQ(line.Run(b, "er"), "er") << "the first one gave way";
  EXPECT_EQ(line.Run(a, "p"), "p");
  EXPECT_EQ(line.Run(c, "e"), "e");
  EXPECT_EQ(line.Run(a, "p"), "p") << "it was used after b";
  EXPECT_EQ(line.Run(b, "er"), "er") << "it gave way to c";
  EXPECT_EQ(line.Run(a, "p"), "p");
  EXPECT_EQ(line.Run(c, "e"), "e") << "it gave way to b";
}

}  // namespace
}  // namespace lathe
