#include "lathe/apps/lathe/self_test/self_test.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/losses.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"

namespace lathe {
namespace {

constexpr int64_t kVocab = 700;  // so large that the table's gradient is exchanged by rows
constexpr int64_t kNumLabels = 3, kTrainSamples = 45, kEvalSamples = 21, kBatchSize = 8;
constexpr int64_t kAccumulation = 4;  // 6 batches an epoch: windows of 4 and 2
constexpr int kEpochs = 15;

constexpr char kConfig[] =
    R"({"model_type": "bert", "vocab_size": 700, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 32})";

// Makes texts whose words belong to their class alone. With `ignore_some`, every tenth label
// doesn't count.
TokenizedDataset MakeData(int64_t size, bool ignore_some) {
  constexpr int64_t kWordsOfClass = kVocab / kNumLabels;
  TokenizedDataset data;
  data.has_labels = true;
  data.num_labels = kNumLabels;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t label = (i * i + i / 3) % kNumLabels, length = 2 + (i * 7) % 19;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t word = (i * 31 + t * t * 17 + 5) % kWordsOfClass;
      data.input_ids.push_back(static_cast<int32_t>(label * kWordsOfClass + word));
      data.token_type_ids.push_back(0);
    }
    data.offsets.push_back(std::ssize(data.input_ids));
    data.classes.push_back(ignore_some && i % 10 == 0 ? kIgnoreIndex : label);
  }
  return data;
}

void Train(Accelerator& accelerator, SequenceClassifier& model, SelfTestReport& report) {
  DataLoader train(MakeData(kTrainSamples, true), {.batch_size = kBatchSize, .shuffle = true});
  AdamW optimizer(DecayGroups(model.Parameters(), 0.01), {.lr = 1e-2});
  const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 2 * kEpochs});
  accelerator.Prepare(train, model, optimizer, *scheduler);
  model.Train();
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const Batch& batch : train) {
      const auto accumulation = accelerator.Accumulate(model);
      accelerator.Backward(model.Forward(batch).loss);
      accelerator.ClipGradNorm(optimizer, 1);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
      if (accelerator.sync_gradients()) report.losses.push_back(accelerator.last_loss());
    }
  }
  const Tensor values = optimizer.arena().values().To(Device{});
  report.weights = accelerator.GatherObject(std::to_string(HashName(
      {static_cast<const char*>(values.raw_data()), static_cast<size_t>(values.bytes())})));
}

void Evaluate(Accelerator& accelerator, SequenceClassifier& model, SelfTestReport& report) {
  DataLoader loader(MakeData(kEvalSamples, false), {.batch_size = kBatchSize});
  accelerator.Prepare(loader);
  model.Eval();
  NoGradGuard no_grad;
  for (const Batch& batch : loader) {
    const Tensor logits = accelerator.GatherForMetrics(model.Forward(batch).logits);
    const Tensor indices = accelerator.GatherForMetrics(Tensor::FromVector(batch.indices));
    for (const float logit : logits.ToVector<float>()) report.logits.push_back(logit);
    for (const int64_t index : indices.ToVector<int64_t>()) report.evaluated.push_back(index);
  }
}

void CheckFinite(const std::vector<double>& values, const std::string& what) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      throw Error(absl::StatusCode::kInternal,
                  what + " " + std::to_string(i + 1) + " is " + std::to_string(values[i]));
    }
  }
}

// --- Checks of collectives. Each returns what is wrong, or "". ---

template <typename T>
std::string Expect(const Tensor& tensor, const std::vector<T>& expected) {
  const std::vector<T> values = tensor.ToVector<T>();
  if (values == expected) return "";
  std::ostringstream problem;
  problem << "got";
  for (const T value : values) problem << ' ' << value;
  problem << " instead of";
  for (const T value : expected) problem << ' ' << value;
  return problem.str();
}

// Rank r gives r + 1 rows.
std::string CheckGather(Accelerator& accelerator) {
  const auto rows_of = [](int rank) {
    return std::vector<float>(static_cast<size_t>(2 * (rank + 1)), static_cast<float>(rank) + 0.5f);
  };
  const int rank = accelerator.process_index();
  std::vector<float> expected;
  for (int r = 0; r < accelerator.num_processes(); ++r) {
    const std::vector<float> rows = rows_of(r);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  return Expect(accelerator.Gather(Tensor::FromVector(rows_of(rank), {rank + 1, 2})), expected);
}

std::string CheckGatherObject(Accelerator& accelerator) {
  const auto text_of = [](int rank) { return std::string(static_cast<size_t>(rank), 'x'); };
  const auto all = accelerator.GatherObject(text_of(accelerator.process_index()));
  for (int r = 0; r < accelerator.num_processes(); ++r) {
    const std::string& text = all.at(static_cast<size_t>(r));
    if (text != text_of(r)) return "rank " + std::to_string(r) + " said \"" + text + "\"";
  }
  return "";
}

// Rank r gives r + 1 and -r.
std::string CheckReduce(Accelerator& accelerator) {
  const auto n = static_cast<float>(accelerator.num_processes());
  const auto r = static_cast<float>(accelerator.process_index());
  const Tensor mine = Tensor::FromVector<float>({r + 1, -r});
  const std::pair<const char*, std::vector<float>> expected[] = {
      {"sum", {n * (n + 1) / 2, -n * (n - 1) / 2}},
      {"mean", {(n + 1) / 2, -(n - 1) / 2}},
      {"max", {n, 0}},
      {"min", {1, -(n - 1)}}};
  for (const auto& [reduction, values] : expected) {
    const std::string problem = Expect(accelerator.Reduce(mine, reduction), values);
    if (!problem.empty()) return std::string(reduction) + ": " + problem;
  }
  return "";
}

std::string CheckBroadcast(Accelerator& accelerator) {
  const int last = accelerator.num_processes() - 1;
  const Tensor tensor = Tensor::Full({3}, accelerator.process_index(), DType::kI64);
  Broadcast(accelerator.group(), tensor, last);
  return Expect(tensor, std::vector<int64_t>(3, last));
}

std::string CheckPad(Accelerator& accelerator) {
  const int rank = accelerator.process_index(), n = accelerator.num_processes();
  std::vector<int64_t> expected(static_cast<size_t>(n), -1);
  std::fill_n(expected.begin(), rank + 1, rank);
  return Expect(accelerator.PadAcrossProcesses(Tensor::Full({rank + 1}, rank, DType::kI64), 0, -1),
                expected);
}

std::string CheckSplit(Accelerator& accelerator) {
  std::vector<int64_t> all(static_cast<size_t>(2 * accelerator.num_processes() + 1));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const auto mine = accelerator.SplitBetweenProcesses(all);
  std::string problem = Expect(accelerator.Gather(Tensor::FromVector(mine)), all);
  const size_t padded = accelerator.SplitBetweenProcesses(all, /*apply_padding=*/true).size();
  if (problem.empty() && padded != 3)
    problem = "with padding, got " + std::to_string(padded) + " elements instead of 3";
  return problem;
}

std::string CheckTriggers(Accelerator& accelerator) {
  if (accelerator.CheckTrigger()) return "a trigger was set before any rank set one";
  accelerator.OnLastProcess([&] { accelerator.SetTrigger(); });
  if (!accelerator.CheckTrigger()) return "the trigger of the last rank did not arrive";
  return accelerator.CheckTrigger() ? "the trigger was not reset" : "";
}

constexpr std::pair<const char*, std::string (*)(Accelerator&)> kCollectives[] = {
    {"Gather", CheckGather},          {"GatherObject", CheckGatherObject},
    {"Reduce", CheckReduce},          {"Broadcast", CheckBroadcast},
    {"PadAcrossProcesses", CheckPad}, {"SplitBetweenProcesses", CheckSplit},
    {"triggers", CheckTriggers}};

}  // namespace

SelfTestReport RunSelfTest(bool notes) {
  Accelerator accelerator({.gradient_accumulation_steps = kAccumulation,
                           .grad_scaler = {.init_scale = 1024},  // no step overflows
                           .notes = notes,
                           .shard_optimizer = true,  // as finetune does
                           .share_parameters = true,
                           .check_parameters_every = 5});
  SelfTestReport report;
  report.rank = accelerator.process_index();
  report.world_size = accelerator.num_processes();
  report.local_world_size = accelerator.environment().local_world_size;
  report.mixed_precision = accelerator.mixed_precision();
  const Device device = accelerator.device();
  if (!device.is_cpu()) {
    report.device = BackendOf(device).Describe(device.index);
    report.tf32 = GetGemmOptions().allow_tf32;
  }
  for (const auto& [name, check] : kCollectives) {
    report.collectives.push_back({name, check(accelerator)});
  }
  const auto model = AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromText(kConfig, "config.json"), {.num_labels = kNumLabels, .seed = 7});
  Train(accelerator, *model, report);
  CheckFinite(report.losses, "the loss of step");
  Evaluate(accelerator, *model, report);
  CheckFinite(report.logits, "logit");
  accelerator.EndTraining();
  return report;
}

}  // namespace lathe
