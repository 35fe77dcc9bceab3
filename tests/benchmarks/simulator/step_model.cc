#include "lathe/tests/benchmarks/simulator/step_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/reduce/gradient_buckets.h"
#include "lathe/distributed/reduce/reducer.h"
#include "lathe/models/pretrained.h"
#include "lathe/nn/arena.h"
#include "lathe/tests/benchmarks/simulator/recorded_call.h"

namespace lathe::simulator {
namespace {

// AdamW reads the value, two moments and the gradient of a parameter. It writes the first three.
constexpr double kBytesOfUpdate = 28;

PretrainedConfig ConfigOf(const std::string& size) {
  nlohmann::json json = {{"model_type", "bert"}, {"num_labels", 2}};
  if (size == "large") {
    json.update({{"hidden_size", 1024},
                 {"intermediate_size", 4096},
                 {"num_hidden_layers", 24},
                 {"num_attention_heads", 16}});
  } else if (size == "tiny") {
    json.update({{"hidden_size", 64},
                 {"intermediate_size", 256},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 2}});
  } else if (size != "base") {
    throw InvalidArgument("the model must be base, large or tiny but is \"" + size + "\"");
  }
  return PretrainedConfig::FromJson(std::move(json));
}

}  // namespace

StepWork WorkOf(const std::string& size) {
  const auto model = AutoModelForSequenceClassification::FromConfig(ConfigOf(size));
  const auto arena = ParameterArena::FindOrCreate(model->Parameters());
  GradientBuckets layout({arena}, {}, {true});
  Check(layout.table_is_last, "simulator", "the last parameter must be a table");
  StepWork work;
  for (const GradientBucket& bucket : layout.buckets) {
    if (layout.IsLast(bucket)) break;
    StepWork::Bucket& added = work.buckets.emplace_back();
    added.num_elements = std::ssize(bucket.grads);
    for (const size_t slot : bucket.slots) {
      const Tensor& tensor = layout.slots[slot].tensor;
      const bool is_table = layout.slots[slot].name.find("embeddings") != std::string::npos;
      if (tensor.ndim() == 2 && !is_table) added.products += tensor.numel();
    }
  }
  const TensorImpl& table = layout.last_tensor();
  work.vocab_size = table.shape[0];
  work.hidden_size = table.shape[1];
  work.tail = static_cast<int64_t>(GradientBuckets::TailOf(layout.last()));
  return work;
}

double ExpectedWords(int64_t vocab_size, double num_tokens) {
  double norm = 0, expected = 0;
  for (int64_t k = 1; k <= vocab_size; ++k) norm += 1.0 / static_cast<double>(k);
  for (int64_t k = 1; k <= vocab_size; ++k)
    expected += 1 - std::exp(num_tokens * std::log1p(-1 / (norm * static_cast<double>(k))));
  return expected;
}

StepModel::StepModel(MachineLayout layout, std::vector<LinkModel> links, ComputeModel compute)
    : layout_(std::move(layout)), links_(std::move(links)), compute_(compute) {}

const StepModel::CallCost& StepModel::Of(Kind kind, int64_t size) {
  const auto [at, is_new] = known_.try_emplace({kind, size});
  CallCost& cost = at->second;
  if (is_new) {
    const RecordedCall call = kind == Kind::kAllReduce       ? RecordAllReduce(layout_, size)
                              : kind == Kind::kReduceScatter ? RecordReduceScatter(layout_, size)
                              : kind == Kind::kAllGather
                                  ? RecordAllGather(layout_, size)
                                  : RecordAllGatherStripes(layout_, {{0, size}});
    cost.seconds.resize(links_.size());
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < links_.size(); ++i)
      cost.seconds[i] = SecondsOf(call, layout_, links_[i]);
    for (int machine = 0; machine < layout_.num_machines(); ++machine)
      cost.bytes = std::max(cost.bytes, call.BytesSent(layout_, machine));
    cost.messages = std::ssize(call.messages);
  }
  bytes_ += cost.bytes;
  messages_ += cost.messages;
  return cost;
}

// Follows the calls of HostTransport, ClipGradNorm and Optimizer::Step.
std::vector<StepCost> StepModel::Costs(const StepWork& work) {
  bytes_ = messages_ = 0;
  const int64_t num_ranks = layout_.num_ranks();
  Calls calls;
  for (const StepWork::Bucket& bucket : work.buckets) {
    calls.reduced.push_back(&Of(Kind::kReduceScatter, bucket.num_elements));
    calls.gathered.push_back(&Of(Kind::kAllGatherStripes, bucket.num_elements));
  }
  const int64_t records = static_cast<int64_t>(kStepRecordFloats) * num_ranks;
  const int64_t table = work.vocab_size * work.hidden_size;
  calls.at_end.push_back(
      &Of(Kind::kAllGather, (work.vocab_size / 64 + 1) * 8));  // the used rows, in bits
  const double rows =
      ExpectedWords(work.vocab_size, static_cast<double>(compute_.tokens_of_rank * num_ranks));
  if (rows <= static_cast<double>(work.vocab_size / 2)) {
    calls.at_end.push_back(
        &Of(Kind::kAllReduce, static_cast<int64_t>(rows) * work.hidden_size + records));
  } else {
    calls.at_end.push_back(&Of(Kind::kAllReduce, table - work.tail));
    calls.at_end.push_back(&Of(Kind::kAllReduce, work.tail + records));
  }
  calls.at_end.push_back(&Of(Kind::kAllReduce, 2));  // the sum of squares, a double

  std::vector<StepCost> costs;
  for (size_t link = 0; link < links_.size(); ++link) costs.push_back(CostOver(link, work, calls));
  return costs;
}

StepCost StepModel::CostOver(size_t link, const StepWork& work, const Calls& calls) const {
  double products = 0, sharded = 0;
  for (const StepWork::Bucket& bucket : work.buckets) {
    products += static_cast<double>(bucket.products);
    sharded += static_cast<double>(bucket.num_elements);
  }
  const double seconds_of_product =
      2 * static_cast<double>(compute_.tokens_of_rank) / compute_.flops_of_rank;
  const auto pass_of = [&](size_t bucket) {
    return seconds_of_product * static_cast<double>(work.buckets[bucket].products);
  };
  // In the forward pass the new values come, those of the last bucket first: the first layers need
  // them.
  double in_collectives = 0, come = 0, forward_end = 0;
  for (size_t b = work.buckets.size(); b-- > 0;) {
    come += calls.gathered[b]->seconds[link];
    forward_end = std::max(forward_end, come) + pass_of(b);
    in_collectives += calls.gathered[b]->seconds[link];
  }
  double ready = forward_end, thread = forward_end;
  for (size_t b = 0; b < work.buckets.size(); ++b) {
    ready += 2 * pass_of(b);
    thread = std::max(thread, ready) + calls.reduced[b]->seconds[link];
    in_collectives += calls.reduced[b]->seconds[link];
  }
  double end = std::max(ready, thread);
  for (const CallCost* call : calls.at_end) {
    in_collectives += call->seconds[link];
    end += call->seconds[link];
  }
  const double exposed = end - 3 * seconds_of_product * products;
  const double table = static_cast<double>(work.vocab_size * work.hidden_size);
  const double update =
      kBytesOfUpdate * (sharded / static_cast<double>(layout_.num_ranks()) + table) *
      static_cast<double>(layout_.RanksOf(0).size()) / links_[link].memory_per_second;
  return {end + update, in_collectives, in_collectives - exposed};
}

}  // namespace lathe::simulator
