// Tests the outputs of a frozen encoder that are kept for all epochs.
#include "lathe/train/frozen_encoder.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/distributed/testing/testing.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

std::shared_ptr<SequenceClassifier> Bert(double dropout) {
  return TinyBert({{"hidden_dropout_prob", dropout}, {"attention_probs_dropout_prob", 0}});
}

std::shared_ptr<SequenceClassifier> FrozenBert(double dropout = 0) {
  const auto model = Bert(dropout);
  for (Parameter& parameter : model->Parameters())
    if (parameter.name.starts_with("bert.")) parameter.tensor.SetRequiresGrad(false);
  return model;
}

Accelerator AcceleratorOf(const TrainingArguments& arguments, const ProcessEnvironment* env) {
  AcceleratorOptions options = AcceleratorOptionsOf(arguments);
  if (env != nullptr) options.environment = *env;
  options.timeout = std::chrono::seconds(50);
  return Accelerator(options);
}

// Returns the rows of 75 samples, as text with all digits.
std::string EncodeOnRank(const ProcessEnvironment& env) {
  Accelerator accelerator = AcceleratorOf(TinyArguments(), &env);
  const auto model = FrozenBert();
  accelerator.Prepare(*model);
  model->Train();
  int64_t announced = 0, batches = 0;
  const EncodedSamples encoded = EncodeSamples(
      accelerator, *model, *TinyData(75),
      {.on_begin = [&](int64_t n) { announced = n; }, .on_batch = [&] { ++batches; }});
  EXPECT_EQ(announced, batches);
  EXPECT_EQ(batches, (3 + env.world_size - 1) / env.world_size);
  std::ostringstream text;
  text.precision(9);
  for (const float value : encoded.rows.ToVector<float>()) text << value << ' ';
  return text.str();
}

TEST(FrozenEncoderTest, AnyNumberOfRanksGivesTheSameRows) {
  std::string one;
  for (const int ranks : {1, 2, 3, 5}) {
    const std::vector<RankResult> results = RunRanks(ranks, EncodeOnRank);
    ExpectAllWell(results);
    if (ranks == 1) one = results[0].said;
    EXPECT_GT(one.size(), 75u * 16 * 2);
    for (const RankResult& result : results) EXPECT_EQ(result.said, one) << ranks;
  }
}

TEST(FrozenEncoderTest, RanksTrainAsOne) {
  const auto said = [](const ProcessEnvironment& env) {
    std::ostringstream text;
    text.precision(17);
    // The batch of all ranks has 6 samples.
    TrainingArguments arguments = TinyArguments();
    arguments.freeze_layers = "encoder";
    arguments.per_device_train_batch_size = 6 / env.world_size;
    arguments.num_train_epochs = 3;
    arguments.logging_steps = 1;
    Accelerator accelerator = AcceleratorOf(arguments, &env);
    Trainer trainer(arguments, accelerator, {.model = Bert(0), .train = TinyData(37)});
    trainer.Train();
    for (const auto& entry : trainer.state().log_history)
      if (entry.contains("loss")) text << entry.at("loss").get<double>() << ' ';
    return text.str();
  };
  std::vector<double> one;
  for (const int ranks : {1, 2, 3}) {
    const std::vector<RankResult> results = RunRanks(ranks, said);
    ExpectAllWell(results);
    std::istringstream in(results[0].said);
    std::vector<double> losses;
    for (double x; in >> x;) losses.push_back(x);
    ASSERT_EQ(losses.size(), 21u);
    if (ranks == 1) one = losses;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], 2e-6) << ranks;
  }
}

// The tests from here on use OpenMP in this process, after which no rank can be forked.
TEST(FrozenEncoderTest, RowsAreThoseOfEachSample) {
  Accelerator accelerator = AcceleratorOf(TinyArguments(), nullptr);
  const auto model = FrozenBert(), other = FrozenBert();
  const auto data = TinyData(40);
  model->Train();
  const Tensor rows = EncodeSamples(accelerator, *model, *data).rows;
  ASSERT_EQ(rows.shape(), (Shape{40, 16}));
  for (int64_t i = 0; i < 40; ++i) {
    const auto alone = other->Encode(Collate(*data, {i})).ToVector<float>();
    for (int64_t c = 0; c < 16; ++c) {
      EXPECT_NEAR(rows.data<float>()[i * 16 + c], alone[static_cast<size_t>(c)], 1e-5) << i;
    }
  }
}

TEST(FrozenEncoderTest, SaysWhyThereAreNoRows) {
  Accelerator accelerator = AcceleratorOf(TinyArguments(), nullptr);
  const auto data = TinyData(4);
  const auto encode = [&](const std::shared_ptr<SequenceClassifier>& model, int64_t most_bytes) {
    model->Train();
    EncodedSamples encoded = EncodeSamples(accelerator, *model, *data, {.most_bytes = most_bytes});
    EXPECT_TRUE(model->training());
    return encoded;
  };
  EXPECT_TRUE(encode(FrozenBert(), 4 * 16 * 4).rows.defined());
  const EncodedSamples large = encode(FrozenBert(), 4 * 16 * 4 - 1);
  EXPECT_FALSE(large.rows.defined());
  EXPECT_NE(large.note.find("2.56e-07 GB"), std::string::npos) << large.note;
  const EncodedSamples random = encode(FrozenBert(0.1), 1000);
  EXPECT_FALSE(random.rows.defined());
  EXPECT_NE(random.note.find("dropout"), std::string::npos) << random.note;
  const EncodedSamples trained = encode(Bert(0.1), 1000);
  EXPECT_FALSE(trained.rows.defined());
  EXPECT_EQ(trained.note, "");
}

// Trains. Returns the losses, and sets `encoded` to the number of batches that were encoded.
std::vector<double> Losses(const std::string& freeze_layers, int64_t epochs, int64_t& encoded) {
  struct Counter : Callback {
    explicit Counter(int64_t& to) : count(to) {}
    void OnEncodeStep(const TrainingArguments&, const TrainerState&, TrainerControl&) override {
      ++count;
    }
    int64_t& count;
  };
  TrainingArguments arguments = TinyArguments();
  arguments.freeze_layers = freeze_layers;
  arguments.num_train_epochs = static_cast<double>(epochs);
  arguments.logging_steps = 1;
  arguments.learning_rate = 0.1;
  Accelerator accelerator = AcceleratorOf(arguments, nullptr);
  encoded = 0;
  Trainer trainer(arguments, accelerator,
                  {.model = freeze_layers.empty() ? FrozenBert() : Bert(0), .train = TinyData(37)},
                  {std::make_shared<Counter>(encoded)});
  trainer.Train();
  std::vector<double> losses;
  for (const auto& entry : trainer.state().log_history)
    if (entry.contains("loss")) losses.push_back(entry.at("loss"));
  return losses;
}

TEST(FrozenEncoderTest, LossesAreThoseOfAnEncoderThatRunsEachTime) {
  int64_t encoded = 0;
  const std::vector<double> run = Losses("", 3, encoded);
  EXPECT_EQ(encoded, 0);
  ASSERT_EQ(run.size(), 57u);
  EXPECT_LT(run.back(), 0.8 * run.front());
  for (const char* which : {"encoder", "^bert"}) {
    const std::vector<double> kept = Losses(which, 3, encoded);
    EXPECT_EQ(encoded, 2) << which;
    ASSERT_EQ(kept.size(), run.size());
    for (size_t i = 0; i < run.size(); ++i) EXPECT_NEAR(kept[i], run[i], 2e-6) << i;
  }
}

// A single epoch has nothing to gain, and what is trained below the head must run.
TEST(FrozenEncoderTest, RunsEachTimeWhereItMust) {
  int64_t encoded = 0;
  Losses("encoder", 1, encoded);
  EXPECT_EQ(encoded, 0);
  Losses("embeddings", 3, encoded);
  EXPECT_EQ(encoded, 0);
}

}  // namespace
}  // namespace lathe
