// Tests that weights of classes and samples mean the same in one batch, over batches that
// accumulate, and over ranks with uneven shares.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <sstream>

#include "lathe/distributed/testing/testing.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

// How a training is divided. The batch of all ranks and the window together have 12 samples.
struct Division {
  int ranks;
  int64_t batch_size, accumulation;
};

constexpr Division kOne = {1, 12, 1};
constexpr Division kDivisions[] = {{1, 4, 3}, {2, 6, 1}, {3, 4, 1}, {2, 2, 3}, {6, 2, 1}};

// Returns 29 samples, so that the last window of an epoch is short. The samples 5 to 9 weigh
// nothing.
std::shared_ptr<TokenizedDataset> Samples(bool weighted) {
  auto data = TinyData(29);
  for (size_t i = 0; i < 29; ++i) data->classes[i] = i % 4 == 0;
  for (int i = 0; weighted && i < 29; ++i)
    data->sample_weights.push_back(i >= 5 && i < 10 ? 0 : 0.1f * static_cast<float>(1 + i % 6));
  return data;
}

TrainingArguments Arguments(const Division& division) {
  TrainingArguments arguments = TinyArguments();
  arguments.per_device_train_batch_size = division.batch_size;
  arguments.gradient_accumulation_steps = division.accumulation;
  arguments.num_train_epochs = 3;
  arguments.logging_steps = 1;
  arguments.weight_decay = 0.01;
  arguments.eval_strategy = "epoch";
  return arguments;
}

// Returns the losses of all steps and of all evaluations, as one line.
std::string LossesOf(TrainingArguments arguments, bool weighted, const ProcessEnvironment& env) {
  AcceleratorOptions options = AcceleratorOptionsOf(arguments);
  options.environment = env;
  options.timeout = std::chrono::seconds(50);
  Accelerator accelerator(options);
  Trainer trainer(
      arguments, accelerator,
      {.model = TinyBert({{"hidden_dropout_prob", 0}, {"attention_probs_dropout_prob", 0}}),
       .train = Samples(weighted),
       .evaluation = TinyData(6)});
  trainer.Train();
  std::ostringstream losses;
  losses.precision(17);
  for (const auto& entry : trainer.state().log_history) {
    for (const char* key : {"loss", "eval_loss"})
      if (entry.contains(key)) losses << entry.at(key).get<double>() << ' ';
  }
  return losses.str();
}

std::vector<double> Numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> numbers;
  for (double x; in >> x;) numbers.push_back(x);
  return numbers;
}

using Change = std::function<void(TrainingArguments&)>;

std::vector<double> Train(const Division& division, const Change& change, bool weighted) {
  TrainingArguments arguments = Arguments(division);
  change(arguments);
  const std::vector<RankResult> results =
      RunRanks(division.ranks,
               [&](const ProcessEnvironment& env) { return LossesOf(arguments, weighted, env); });
  ExpectAllWell(results);
  for (const RankResult& result : results) EXPECT_EQ(result.said, results[0].said);
  return Numbers(results[0].said);
}

void ExpectSameInAllDivisions(const Change& change, bool weighted) {
  const std::vector<double> one = Train(kOne, change, weighted);
  ASSERT_EQ(one.size(), 12u);  // 3 epochs of 3 steps and an evaluation
  for (const Division& division : kDivisions) {
    SCOPED_TRACE(testing::Message() << division.ranks << " ranks, batches of "
                                    << division.batch_size << ", " << division.accumulation);
    const std::vector<double> losses = Train(division, change, weighted);
    ASSERT_EQ(losses.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], 2e-6) << i;
  }
}

TEST(TrainerWeightsTest, ClassWeights) {
  ExpectSameInAllDivisions(
      [](TrainingArguments& a) {
        a.class_weights = "balanced";
        a.label_smoothing_factor = 0.1;
      },
      false);
}

TEST(TrainerWeightsTest, SampleWeightsAndFocalLoss) {
  ExpectSameInAllDivisions(
      [](TrainingArguments& a) {
        a.class_weights = "LABEL_0=0.2,LABEL_1=3";
        a.focal_gamma = 2;
      },
      true);
}

// Without a shuffle, whole shares and micro-batches weigh nothing.
TEST(TrainerWeightsTest, SampleWeightsInOrder) {
  ExpectSameInAllDivisions([](TrainingArguments& a) { a.shuffle_train = false; }, true);
}

// A step without any weight has no loss and leaves the values to the weight decay.
TEST(TrainerWeightsTest, AStepWithoutWeight) {
  const auto losses = [](int ranks, int64_t batch_size) {
    return Train(
        {ranks, batch_size, 1}, [](TrainingArguments& a) { a.shuffle_train = false; }, true);
  };
  const std::vector<double> one = losses(1, 2), two = losses(2, 1);
  ASSERT_EQ(one.size(), 48u);  // 3 epochs of 15 steps and an evaluation
  ASSERT_EQ(two.size(), one.size());
  EXPECT_GT(one[0], 0.1);
  EXPECT_EQ(one[3], 0);  // samples 6 and 7
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 2e-6) << i;
}

TEST(TrainerWeightsTest, RefusesWeightsThatCanNotBeRight) {
  for (const float weight : {0.0f, -1.0f, std::nanf("")}) {
    auto data = TinyData(4);
    data->sample_weights = {0, 0, 0, weight};
    Accelerator accelerator(AcceleratorOptionsOf(TinyArguments()));
    EXPECT_THROW(Trainer(TinyArguments(), accelerator, {.model = TinyBert(), .train = data}), Error)
        << weight;
  }
}

}  // namespace
}  // namespace lathe
