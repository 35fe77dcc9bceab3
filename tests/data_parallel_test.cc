// The same training in one process and in several, beside each other: BERT of a small size, from
// fresh weights that are a function of the seed, so that nothing but the loop is compared.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "lathe/core/autograd.h"
#include "lathe/core/philox.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/testing.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"

namespace lathe {
namespace {

struct Job {
  double dropout = 0;
  int64_t num_samples = 45, batch_size = 8;  // the last batch is short
  int64_t accumulation = 1;
  double max_grad_norm = 0.5;
  int ignore_every = 0;  // this often a label is -100
  bool shuffle = true, checkpointing = false;
  std::string precision = "no";
  ReducerOptions reducer = {.first_bucket_bytes = 2048, .bucket_bytes = 8192};
  int epochs = 2;
  bool shard = false, sgd = false;
  int64_t vocab = 700;  // large enough for its table to be sent by rows
  bool tcp = false;     // as if each process had a machine of its own
  int freeze_at = -1;   // the step before which the first layer is frozen, for two steps
};

std::shared_ptr<SequenceClassifier> MakeModel(const Job& job) {
  std::ostringstream json;
  json << R"({"model_type":"bert","vocab_size":)" << job.vocab
       << R"(,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,)"
       << R"("intermediate_size":64,"max_position_embeddings":32,"hidden_dropout_prob":)"
       << job.dropout << R"(,"attention_probs_dropout_prob":)" << job.dropout << "}";
  auto model = AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromText(json.str(), "config.json"), {.num_labels = 3, .seed = 7});
  model->SetGradientCheckpointing(job.checkpointing);
  return model;
}

TokenizedDataset MakeData(const Job& job) {
  TokenizedDataset data;
  data.has_labels = true;
  data.num_labels = 3;
  for (int64_t i = 0; i < job.num_samples; ++i) {
    const int64_t length = 2 + (i * 7) % 19;
    for (int64_t t = 0; t < length; ++t) {
      data.input_ids.push_back(static_cast<int32_t>((i * 31 + t * t * 17 + 5) % job.vocab));
      data.token_type_ids.push_back(0);
    }
    data.offsets.push_back(std::ssize(data.input_ids));
    const bool ignored = job.ignore_every > 0 && i % job.ignore_every == 0;
    data.classes.push_back(ignored ? -100 : (i * i) % 3);
  }
  return data;
}

uint64_t HashOf(const Tensor& values) {
  return HashName(
      {static_cast<const char*>(values.raw_data()), static_cast<size_t>(values.bytes())});
}

// Trains, and returns the losses and a hash of the final parameters.
std::string Train(ProcessEnvironment env, const Job& job) {
  if (job.tcp) env.local_world_size = 1;
  Accelerator accelerator({.gradient_accumulation_steps = job.accumulation,
                           .mixed_precision = job.precision,
                           .environment = env,
                           .timeout = std::chrono::seconds(30),
                           .reducer = job.reducer,
                           .shard_optimizer = job.shard,
                           .check_parameters_every = 3});
  const auto model = MakeModel(job);
  DataLoader train(MakeData(job), {.batch_size = job.batch_size, .shuffle = job.shuffle});
  const auto groups = DecayGroups(model->Parameters(), 0.01);
  std::unique_ptr<Optimizer> own;
  if (job.sgd) {
    own = std::make_unique<SGD>(groups, SGDOptions{.lr = 3e-2, .momentum = 0.9});
  } else {
    own = std::make_unique<AdamW>(groups, AdamWOptions{.lr = 3e-3});
  }
  Optimizer& optimizer = *own;
  const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 40});
  accelerator.Prepare(*scheduler, *model, optimizer, train);
  model->Train();
  std::ostringstream out;
  out.precision(12);
  for (int epoch = 0; epoch < job.epochs; ++epoch) {
    for (const Batch& batch : train) {
      for (const Parameter& p : model->Parameters()) {
        const int64_t step = optimizer.step_count();
        const bool frozen = job.freeze_at >= 0 && step >= job.freeze_at && step < job.freeze_at + 2;
        Tensor tensor = p.tensor;
        if (p.name.find("layer.0.") != std::string::npos) tensor.SetRequiresGrad(!frozen);
      }
      const auto accumulation = accelerator.Accumulate(*model);
      accelerator.Backward(model->Forward(batch).loss);
      if (job.max_grad_norm > 0) accelerator.ClipGradNorm(optimizer, job.max_grad_norm);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
      if (accelerator.sync_gradients()) out << accelerator.last_loss() << ' ';
    }
  }
  out << optimizer.lr() << ' ' << optimizer.step_count() << ' '
      << HashOf(optimizer.arena().values());
  return out.str();
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Runs the job with 1 to `most` processes.
void CompareWithOne(const Job& job, double limit, int most = 4) {
  std::vector<std::string> alone;
  for (int n = 1; n <= most; ++n) {
    const auto results =
        RunRanks(n, [&](const ProcessEnvironment& env) { return Train(env, job); });
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_EQ(results[rank].exit_code, 0)
          << n << " processes, rank " << rank << ": " << results[rank].said;
      // Losses, rate, steps and parameters, bit by bit.
      EXPECT_EQ(results[rank].said, results[0].said) << "rank " << rank;
    }
    const std::vector<std::string> words = Words(results[0].said);
    if (n == 1) alone = words;
    ASSERT_EQ(words.size(), alone.size());
    for (size_t i = 0; i + 3 < words.size(); ++i) {
      const double one = std::stod(alone[i]), many = std::stod(words[i]);
      EXPECT_TRUE(std::isfinite(one));
      EXPECT_NEAR(many, one, limit * std::fabs(one)) << n << " processes, step " << i;
    }
    EXPECT_EQ(words[words.size() - 3], alone[alone.size() - 3]);  // rate
    EXPECT_EQ(words[words.size() - 2], alone[alone.size() - 2]);  // steps
  }
}

constexpr double kLimit = 1e-6;

TEST(DataParallel, LossesAreThoseOfOneProcess) { CompareWithOne({}, kLimit); }

TEST(DataParallel, WithDropoutToo) { CompareWithOne({.dropout = 0.2}, kLimit); }

TEST(DataParallel, AccumulationAveragesOverTheWindow) {
  // 6 batches an epoch in windows of 4 and 2, the last batch short.
  CompareWithOne({.dropout = 0.1, .accumulation = 4}, kLimit);
}

TEST(DataParallel, FewerSamplesThanProcesses) {
  CompareWithOne({.dropout = 0.1, .num_samples = 11, .batch_size = 3}, kLimit);
}

TEST(DataParallel, IgnoredLabelsCountNowhere) {
  CompareWithOne({.accumulation = 2, .ignore_every = 3}, kLimit);
}

TEST(DataParallel, GradientCheckpointing) {
  CompareWithOne({.dropout = 0.1, .checkpointing = true}, kLimit, 2);
}

TEST(DataParallel, WithoutOverlap) {
  CompareWithOne({.reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = false}},
                 kLimit, 2);
}

TEST(DataParallel, OneBucket) { CompareWithOne({.reducer = {}}, kLimit, 3); }

TEST(DataParallel, CompressedGradients) {
  CompareWithOne({.reducer = {.compression = "bf16"}}, 2e-2, 2);
}

// A window's gradients are those of one batch of all its samples.
TEST(DataParallel, AccumulationIsALargerBatch) {
  const Job parts{
      .num_samples = 44, .batch_size = 4, .accumulation = 4, .shuffle = false, .epochs = 1};
  Job whole = parts;
  whole.batch_size = 16;
  whole.accumulation = 1;
  const auto losses = [](const Job& job) {
    return Words(
        RunRanks(2, [&](const ProcessEnvironment& env) { return Train(env, job); })[0].said);
  };
  const auto a = losses(parts), b = losses(whole);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(a.size(), 3u + 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(std::stod(a[i]), std::stod(b[i]), 2e-6);
}

// The same numbers whether each process updates everything or its own part; the same bits where
// the gradients' norm plays no part.
void CompareSharded(Job job, double limit = kLimit) {
  for (const int n : {2, 3}) {
    std::vector<std::string> whole;
    for (const bool shard : {false, true}) {
      job.shard = shard;
      const auto results =
          RunRanks(n, [&](const ProcessEnvironment& env) { return Train(env, job); });
      for (int rank = 0; rank < n; ++rank) {
        ASSERT_EQ(results[rank].exit_code, 0) << "rank " << rank << ": " << results[rank].said;
        EXPECT_EQ(results[rank].said, results[0].said) << "rank " << rank;
      }
      const std::vector<std::string> words = Words(results[0].said);
      if (!shard) {
        whole = words;
        continue;
      }
      ASSERT_EQ(words.size(), whole.size());
      if (job.max_grad_norm == 0) {
        EXPECT_EQ(words, whole);
      }
      for (size_t i = 0; i + 3 < words.size(); ++i) {
        const double a = std::stod(whole[i]), b = std::stod(words[i]);
        EXPECT_NEAR(b, a, limit * std::fabs(a)) << n << " processes, step " << i;
      }
    }
  }
}

TEST(ShardedOptimizer, SameBits) {
  CompareSharded({.dropout = 0.1, .max_grad_norm = 0});
  CompareSharded({.max_grad_norm = 0, .sgd = true});
}

TEST(ShardedOptimizer, Clipping) { CompareSharded({.dropout = 0.1}); }

TEST(ShardedOptimizer, Accumulation) {
  CompareSharded({.accumulation = 4, .max_grad_norm = 0, .ignore_every = 3});
  CompareSharded({.accumulation = 4});
}

TEST(ShardedOptimizer, BFloat16) {
  CompareSharded({.max_grad_norm = 0, .precision = "bf16"});
  CompareSharded({.max_grad_norm = 0, .reducer = {.compression = "bf16"}, .vocab = 100});
}

// The last bucket's end goes to all.
TEST(ShardedOptimizer, WithoutLargeTable) {
  CompareSharded({.max_grad_norm = 0, .vocab = 100});
  CompareSharded({.max_grad_norm = 0, .reducer = {}, .sgd = true, .vocab = 100});
}

TEST(ShardedOptimizer, WithoutOverlap) {
  CompareSharded({.max_grad_norm = 0,
                  .reducer = {.first_bucket_bytes = 4, .bucket_bytes = 4, .overlap = false}});
}

TEST(ShardedOptimizer, OverTcp) { CompareSharded({.dropout = 0.1, .tcp = true}); }

// Other buckets, so that moments change hands.
TEST(ShardedOptimizer, ParametersFrozenForAWhile) {
  CompareSharded({.max_grad_norm = 0, .freeze_at = 3});
  CompareSharded({.max_grad_norm = 0, .reducer = {}, .sgd = true, .vocab = 100, .freeze_at = 4});
}

TEST(ShardedOptimizer, AsOneProcess) { CompareWithOne({.dropout = 0.1, .shard = true}, kLimit); }

}  // namespace
}  // namespace lathe
