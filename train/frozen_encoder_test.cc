// Tests the outputs of a frozen encoder that are kept for all epochs.
#include "lathe/train/frozen_encoder.h"

#include <gtest/gtest.h>
#include <omp.h>

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
  // The ranks share the cores, but the bits of products depend on the number of threads.
  omp_set_num_threads(1);
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

// Changes the encoder behind the back of those who believe that it is frozen.
void ChangeEncoder(SequenceClassifier& model) {
  for (Parameter& parameter : model.Parameters()) {
    // The pooler belongs to the head.
    if (!parameter.name.starts_with("bert.encoder.")) continue;
    float* values = parameter.tensor.data<float>();
    for (int64_t i = 0; i < parameter.tensor.numel(); ++i) values[i] += i % 2 == 0 ? 0.5f : -0.25f;
  }
}

// Expects an evaluation to have the bits that it has without kept encodings, and later ones not to
// run the encoder.
std::string EvaluateOnRank(const ProcessEnvironment& env) {
  Accelerator accelerator = AcceleratorOf(TinyArguments(), &env);
  const auto model = FrozenBert(0.1);  // its dropout is off in evaluations
  accelerator.Prepare(*model);
  const auto data = TinyData(37);
  KeptEncodings kept;
  const auto evaluate = [&](KeptEncodings* encodings, int64_t batch_size) {
    return Evaluate(accelerator, *model, data,
                    {.per_device_batch_size = batch_size, .encodings = encodings});
  };
  const Evaluation plain = evaluate(nullptr, 4), first = evaluate(&kept, 4);
  EXPECT_EQ(first.logits, plain.logits);
  EXPECT_EQ(first.loss, plain.loss);
  ChangeEncoder(*model);
  EXPECT_NE(evaluate(nullptr, 4).logits, plain.logits);
  const Evaluation second = evaluate(&kept, 4);
  EXPECT_EQ(second.logits, plain.logits);
  EXPECT_EQ(second.loss, plain.loss);
  // Batches of another size are encoded anew.
  EXPECT_EQ(evaluate(&kept, 3).logits, evaluate(nullptr, 3).logits);
  EXPECT_EQ(kept.note(), "");
  return "";
}

TEST(FrozenEncoderTest, EvaluationsKeepTheirBits) {
  for (const int ranks : {1, 2, 3}) ExpectAllWell(RunRanks(ranks, EvaluateOnRank));
}

// The tests from here on use OpenMP in this process, after which no rank can be forked.
TEST(FrozenEncoderTest, KeepsNoEncodingsWithoutRoomOrUse) {
  Accelerator accelerator = AcceleratorOf(TinyArguments(), nullptr);
  const auto data = TinyData(10);
  const auto expect_kept = [&](const std::shared_ptr<SequenceClassifier>& model, KeptEncodings kept,
                               bool is_kept) {
    const auto logits = [&] {
      return Evaluate(accelerator, *model, data, {.encodings = &kept}).logits;
    };
    const std::vector<float> before = logits();
    ChangeEncoder(*model);
    EXPECT_EQ(logits() == before, is_kept);
    return kept.note();
  };
  EXPECT_EQ(expect_kept(FrozenBert(), KeptEncodings(10 * 16 * 4), true), "");
  EXPECT_EQ(expect_kept(FrozenBert(), KeptEncodings(10 * 16 * 4 - 1), false),
            "note: the frozen encoder runs in each evaluation, because its outputs would take "
            "6.4e-07 GB of memory");
  EXPECT_EQ(expect_kept(Bert(0), KeptEncodings(), false), "");
}

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

// Evaluates after every second step of one epoch. Returns all losses of evaluations, and that of
// one at the end.
std::vector<double> EvaluationLosses(const std::string& freeze_layers) {
  TrainingArguments arguments = TinyArguments();
  arguments.freeze_layers = freeze_layers;
  arguments.num_train_epochs = 1;
  arguments.eval_strategy = "steps";
  arguments.eval_steps = 2;
  arguments.learning_rate = 0.1;
  Accelerator accelerator = AcceleratorOf(arguments, nullptr);
  const auto model = freeze_layers.empty() ? FrozenBert() : Bert(0);
  const auto data = TinyData(21);
  Trainer trainer(arguments, accelerator,
                  {.model = model, .train = TinyData(16), .evaluation = data});
  EXPECT_EQ(trainer.encodings() == nullptr, freeze_layers.empty());
  trainer.Train();
  std::vector<double> losses;
  for (const auto& entry : trainer.state().log_history)
    if (entry.contains("eval_loss")) losses.push_back(entry.at("eval_loss"));
  const EvaluateOptions options{.per_device_batch_size = arguments.per_device_eval_batch_size,
                                .encodings = trainer.encodings()};
  losses.push_back(Evaluate(accelerator, *model, data, options).loss);
  return losses;
}

TEST(FrozenEncoderTest, EvaluationsWhileTrainingKeepTheirBits) {
  const std::vector<double> run = EvaluationLosses("");
  ASSERT_EQ(run.size(), 5u);
  EXPECT_NE(run[0], run[1]);
  EXPECT_EQ(EvaluationLosses("encoder"), run);
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
