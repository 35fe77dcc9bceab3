#include "lathe/tests/data_parallel_job.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>

#include "lathe/core/base/philox.h"
#include "lathe/core/ops/losses.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"

namespace lathe {
namespace {

std::shared_ptr<SequenceClassifier> MakeModel(const DataParallelJob& job) {
  std::ostringstream json;
  json << R"({"model_type":")" << job.model_type << R"(","position_embedding_type":")"
       << job.position_embedding_type << R"(","vocab_size":)" << job.vocab
       << R"(,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,)"
       << R"("intermediate_size":64,"max_position_embeddings":32,"hidden_dropout_prob":)"
       << job.dropout << R"(,"attention_probs_dropout_prob":)" << job.dropout << "}";
  auto model = AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromText(json.str(), "config.json"), {.num_labels = 3, .seed = 7});
  model->SetGradientCheckpointing(job.checkpointing);
  return model;
}

TokenizedDataset MakeData(const DataParallelJob& job) {
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
    data.classes.push_back(ignored ? kIgnoreIndex : (i * i) % 3);
  }
  return data;
}

std::unique_ptr<Optimizer> MakeOptimizer(const DataParallelJob& job, const Module& model) {
  const auto groups = DecayGroups(model.Parameters(), job.weight_decay);
  if (job.sgd) return std::make_unique<SGD>(groups, SGDOptions{.lr = 3e-2, .momentum = 0.9});
  return std::make_unique<AdamW>(groups, AdamWOptions{.lr = 3e-3});
}

// Freezes the first layer for two steps, if the job wants it.
void FreezeFirstLayer(const DataParallelJob& job, const Module& model, int64_t step) {
  const bool frozen = job.freeze_at >= 0 && step >= job.freeze_at && step < job.freeze_at + 2;
  for (const Parameter& p : model.Parameters()) {
    Tensor tensor = p.tensor;
    if (p.name.find("layer.0.") != std::string::npos) tensor.SetRequiresGrad(!frozen);
  }
}

uint64_t HashOf(const std::vector<float>& values) {
  return HashName({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

}  // namespace

std::string Train(ProcessEnvironment env, const DataParallelJob& job) {
  if (job.tcp) env.local_world_size = 1;
  if (!job.machines.empty()) env = PlacedOn(env, job.machines);
  Accelerator accelerator({.gradient_accumulation_steps = job.accumulation,
                           .mixed_precision = job.precision,
                           .grad_scaler = {.init_scale = job.init_scale},
                           .device = job.device,
                           .environment = env,
                           .timeout = std::chrono::seconds(30),
                           .reducer = job.reducer,
                           .shard_optimizer = job.shard,
                           .share_parameters = job.share,
                           .check_parameters_every = 3});
  const auto model = MakeModel(job);
  DataLoader train(MakeData(job), {.batch_size = job.batch_size, .shuffle = job.shuffle});
  const std::unique_ptr<Optimizer> own = MakeOptimizer(job, *model);
  Optimizer& optimizer = *own;
  const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 40});
  accelerator.Prepare(*scheduler, *model, optimizer, train);
  model->Train();
  std::ostringstream losses, out;
  losses.precision(12);
  out.precision(12);
  int64_t num_losses = 0;
  for (int epoch = 0; epoch < job.epochs; ++epoch) {
    for (const Batch& batch : train) {
      job.before_batch(env.rank, optimizer.step_count());
      FreezeFirstLayer(job, *model, optimizer.step_count());
      const auto accumulation = accelerator.Accumulate(*model);
      accelerator.Backward(model->Forward(batch).loss);
      if (job.max_grad_norm > 0) accelerator.ClipGradNorm(optimizer, job.max_grad_norm);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
      if (!accelerator.sync_gradients()) continue;
      losses << accelerator.last_loss() << ' ';
      ++num_losses;
      job.after_step(env.rank, optimizer.step_count());
    }
  }
  const bool is_writable_by_others =
      optimizer.arena().values().impl()->storage->is_writable_by_others();
  Check(is_writable_by_others ==
            (job.share && !job.tcp && job.machines.empty() && accelerator.num_processes() > 1),
        "test", "parameters are ", is_writable_by_others ? "" : "not ",
        "in memory that processes share");
  const GradScaler* const scaler = accelerator.scaler();
  const std::vector<float> weights = optimizer.arena().values().ToVector<float>();
  out << num_losses << ' ' << losses.str() << optimizer.lr() << ' ' << optimizer.step_count() << ' '
      << (scaler == nullptr ? 0 : scaler->num_skipped_steps()) << ' ' << HashOf(weights);
  for (size_t i = 0; job.print_weights && i < weights.size(); ++i) out << ' ' << weights[i];
  return out.str();
}

TrainingResult ParseTraining(const std::string& said) {
  std::istringstream in(said);
  TrainingResult result;
  size_t num_losses = 0;
  in >> num_losses;
  result.losses.resize(num_losses);
  for (double& loss : result.losses) in >> loss;
  in >> result.rate >> result.steps >> result.skipped >> result.hash;
  EXPECT_FALSE(in.fail()) << said.substr(0, 300);
  result.weights.assign(std::istream_iterator<double>(in), {});
  return result;
}

TrainingResult TrainInProcesses(int n, const DataParallelJob& job) {
  const auto results = RunRanks(n, [&](const ProcessEnvironment& env) { return Train(env, job); });
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0)
        << n << " processes, rank " << rank << ": " << results[rank].said.substr(0, 300);
    EXPECT_TRUE(results[rank].said == results[0].said) << "rank " << rank << " differs";
  }
  return ParseTraining(results[0].said);
}

void ExpectSameLosses(const TrainingResult& a, const TrainingResult& b, double limit) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_TRUE(std::isfinite(b.losses[i]));
    EXPECT_NEAR(a.losses[i], b.losses[i], limit * std::fabs(b.losses[i])) << "step " << i;
  }
  EXPECT_EQ(a.rate, b.rate);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.skipped, b.skipped);
}

void CompareWithOne(const DataParallelJob& job, double limit, int most) {
  const TrainingResult alone = TrainInProcesses(1, job);
  for (int n = 2; n <= most; ++n) {
    SCOPED_TRACE(std::to_string(n) + " processes");
    ExpectSameLosses(TrainInProcesses(n, job), alone, limit);
  }
}

}  // namespace lathe
