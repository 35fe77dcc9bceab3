// Batches of similar shapes share a CUDA graph (distributed/batch_passes.h). The rows and sequences
// that fill a batch up count in no result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/batch_passes.h"
#include "lathe/optim/optimizer.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/tiny_bert.h"
#include "lathe/tests/training_outcome.h"

namespace lathe {
namespace {

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

class StepGraphShapesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }

  // Products are deterministic, because results are compared bit for bit.
  const DeterministicGemms deterministic_;
};

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
Outcome TrainOn(const std::vector<Batch>& batches, int64_t num_labels, BatchPasses* graphs,
                const Forward& forward = OwnLoss, DType dtype = DType::kF32) {
  const auto model = TinyBert({}, num_labels);
  AdamW optimizer(model->Parameters(), {.lr = 1e-3});
  model->To(CheckedDevice());
  model->SetComputeDType(dtype);
  model->Train();
  std::vector<double> losses;
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
          graphs == nullptr ? GraphStatistics() : graphs->statistics()};
}

TEST_F(StepGraphShapesTest, NumbersOfSequencesShareAGraph) {
  const std::vector<int64_t> sizes = {8, 5, 6, 7, 8, 1, 7, 5, 2, 8, 6, 3};
  const struct {
    int64_t num_labels;
    std::function<Tensor(int64_t)> labels;
  } heads[] = {{2, Classes}, {1, Scores}, {3, ManyLabels}};
  for (const auto& [num_labels, labels] : heads) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(std::to_string(num_labels) + " labels, " + ToString(dtype));
      const std::vector<Batch> batches = BatchesOf(sizes, labels);
      BatchPasses graphs(CheckedDevice());
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

// If tokens fill all rows of a batch, its surplus sequences get further rows.
TEST_F(StepGraphShapesTest, SurplusSequencesBesideFullRows) {
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
  BatchPasses graphs(CheckedDevice());
  const Outcome actual = TrainOn(batches, 2, &graphs);
  ExpectNear(actual, TrainOn(batches, 2, nullptr), 1e-6);
  EXPECT_EQ(actual.statistics.recorded, 2) << "of 128 and of 256 rows";
}

// A loss that isn't the model's own is computed for as many sequences as the batch has.
TEST_F(StepGraphShapesTest, OtherLossesMeetNoSurplusSequences) {
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
    BatchPasses graphs(CheckedDevice());
    const Outcome actual = TrainOn(batches, 1, &graphs, forward);
    const Outcome expected = TrainOn(batches, 1, nullptr, forward);
    EXPECT_EQ(actual.losses, expected.losses);
    EXPECT_EQ(actual.values, expected.values);
    EXPECT_EQ(actual.statistics.recorded, 3);
    EXPECT_EQ(actual.statistics.replayed, 5);
  }
}

TEST_F(StepGraphShapesTest, ShapesBeyondTheMostGiveWay) {
  // Three shapes come in turn, with room for two, so each is recorded anew.
  std::vector<Batch> batches;
  for (const int64_t longest : {150, 70, 3, 150, 70, 3}) {
    for (Batch& batch : BatchesOf({8, 7, 8, 8}, Classes, longest)) batches.push_back(batch);
  }
  for (size_t i = 0; i < batches.size(); ++i) batches[i].step = static_cast<int64_t>(i);
  BatchPasses few(CheckedDevice(), nullptr, 2), many(CheckedDevice());
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
