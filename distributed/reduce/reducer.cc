#include "lathe/distributed/reduce/reducer.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/round_up.h"
#include "lathe/distributed/groups/collectives.h"

namespace lathe {
namespace {

constexpr char kPartialGradHint[] =
    "each process has only its part of the gradients; to read them after Backward, set "
    "AcceleratorOptions::shard_optimizer to false";

constexpr int64_t kCopyAlignment = 32;  // in elements

// Returns the options. Throws if they are out of range. Throws on all ranks if these differ in the
// options or in the layout of the parameters.
ReducerOptions Checked(ProcessGroup& group,
                       const std::vector<std::shared_ptr<ParameterArena>>& arenas,
                       const ReducerOptions& options) {
  Check(options.compression == "no" || options.compression == "bf16", "reducer",
        "gradient_compression must be \"no\" or \"bf16\" but is \"", options.compression, "\"");
  NamedValues values = {{"bucket_bytes", std::to_string(options.bucket_bytes)},
                        {"first_bucket_bytes", std::to_string(options.first_bucket_bytes)},
                        {"gradient_compression", options.compression}};
  for (const auto& arena : arenas) {
    for (const ParameterArena::Entry& entry : arena->entries()) {
      const Tensor& tensor = entry.parameter.tensor;
      values.emplace_back("parameter " + entry.parameter.name,
                          ToString(tensor.shape()) + (tensor.requires_grad() ? "" : " frozen"));
    }
  }
  CheckSame(group, "preflight", values, "run the same program with the same options on all ranks");
  return options;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<ProcessGroup> group,
                 std::vector<std::shared_ptr<ParameterArena>> arenas, const ReducerOptions& options,
                 const std::vector<bool>& sharded, std::shared_ptr<NcclGroup> device_group)
    : group_(std::move(group)),
      arenas_(std::move(arenas)),
      options_(Checked(*group_, arenas_, options)),
      layout_(arenas_, options_, sharded),
      transport_(MakeTransport(group_, std::move(device_group), layout_, options_)) {
  for (size_t i = 0; i < slots_.size(); ++i)
    slots_[i].tensor.impl()->mutable_gradient().on_ready = [this, i] { OnReady(i); };
}

Reducer::~Reducer() {
  for (GradientSlot& slot : slots_) slot.tensor.impl()->mutable_gradient().on_ready = nullptr;
}

void Reducer::BeforeBackward(bool reduce) {
  for (const auto& arena : arenas_)
    arena->RawGrads();  // restores gradients that were set by hand to the arena
  CountSumsOnce();
  Check(!broken_, "reducer", "an earlier backward pass has failed; the ranks no longer agree");
  armed_ = broken_ = reduce;
  if (!armed_) return;
  for (GradientBucket& bucket : buckets_) bucket.waiting = bucket.slots.size();
  for (GradientSlot& slot : slots_) slot.parts = 0;
}

void Reducer::CountSumsOnce() {
  if (!std::exchange(summed_, false)) return;
  for (const GradientBucket& bucket : buckets_) CountSumOnce(bucket);
}

// A gradient that is summed already must not be added again by every rank. Each rank keeps 1/size
// of a gradient that all ranks have; a stripe stays with its owner.
void Reducer::CountSumOnce(const GradientBucket& bucket) {
  const float size = static_cast<float>(group_->size());
  for (const size_t i : bucket.slots) {
    TensorImpl& p = *slots_[i].tensor.impl();
    LeafGradient& gradient = p.mutable_gradient();
    gradient.partial_hint = nullptr;
    if (gradient.is_stale || gradient.buffer == nullptr) continue;
    if (bucket.num_sharded_elements == 0) {
      gradient.scale /= size;
      continue;
    }
    float* const grad = Tensor(gradient.buffer).data<float>();
    const ElementRange all = {p.offset, p.offset + NumElements(p.shape)};
    const ElementRange own = StripeOfRank(bucket.ShardedRange(), group_->rank(), group_->size());
    for (const ElementRange& rest : Difference(all, {own})) {
      for (int64_t at = rest.begin; at < rest.end; ++at) {
        float& g = grad[at - all.begin];
        // Not multiplied by 0: others' may be NaN.
        g = at < bucket.ShardedRange().end ? 0 : g / size;
      }
    }
  }
}

void Reducer::OnReady(size_t i) {
  group_->CheckPeers();  // a long pass does not go on without the other ranks
  if (!armed_) return;
  GradientSlot& slot = slots_[i];
  if (++slot.parts != slot.expected) {
    if (slot.expected == 0 || slot.parts < slot.expected || slot.bucket >= sent_) return;
    throw Error(absl::StatusCode::kFailedPrecondition,
                "[reducer] the gradient of parameter " + slot.name +
                    " came in more parts than in the step before, after it had been sent",
                "set AcceleratorOptions::reducer.overlap to false if steps differ in this way");
  }
  --buckets_[slot.bucket].waiting;
  if (!options_.overlap) return;
  // Finish sends the last bucket.
  while (sent_ + 1 < buckets_.size() && buckets_[sent_].waiting == 0) Send();
}

// Makes the buffer of the next bucket's gradients hold their values.
void Reducer::MaterializeGradients() {
  for (const size_t i : buckets_[sent_].slots) {
    LeafGradient& gradient = slots_[i].tensor.impl()->mutable_gradient();
    ClearStaleGrad(gradient);
    // Multiplies the buffer by the factors, and forgets the rows.
    if (gradient.scale != 1 || gradient.device_scale != nullptr) {
      slots_[i].tensor.MaterializeGrad();
    }
  }
}

// Sends the next bucket.
void Reducer::Send() {
  MaterializeGradients();
  transport_->Send(sent_++);
}

std::vector<StepRecord> Reducer::Finish(const StepRecord& mine) {
  armed_ = false;
  while (sent_ + 1 < buckets_.size()) Send();
  MaterializeGradients();
  std::vector<StepRecord> records = transport_->Finish(mine);
  sent_ = 0;
  for (GradientSlot& slot : slots_) {
    slot.expected = slot.parts;
    LeafGradient& gradient = slot.tensor.impl()->mutable_gradient();
    const bool is_last_table = layout_.table_is_last && &slot == &slots_.back();
    if (!is_last_table) gradient.rows.reset();
    if (buckets_[slot.bucket].num_sharded_elements > 0) gradient.partial_hint = kPartialGradHint;
  }
  summed_ = true;
  broken_ = false;
  return records;
}

void Reducer::Abandon() { armed_ = false; }

std::vector<ElementRange> Reducer::ShardedRanges(size_t arena) const {
  std::vector<ElementRange> ranges;
  for (const GradientBucket& bucket : buckets_) {
    if (bucket.arena == arena && bucket.num_sharded_elements > 0)
      ranges.push_back(bucket.ShardedRange());
  }
  const GradientBucket& last = buckets_.back();
  if (last.arena != arena || !group_->reads_memory()) return ranges;
  if (!layout_.table_is_last) {
    const int64_t end = last.offset + std::ssize(last.grads);
    ranges.push_back({end - static_cast<int64_t>(layout_.TailOf(last)), end});
    return ranges;
  }
  // Frequent tokens are neighbours in the table. So the table is cut into lots, which are short
  // ranges of its rows, and each rank gets a stripe of every lot.
  const TensorImpl& table = layout_.last_tensor();
  const int64_t end = last.offset + NumElements(table.shape);
  const int64_t lot = 256 * group_->size() * table.shape[1];
  for (int64_t at = last.offset; at < end; at += lot)
    ranges.push_back({at, std::min(end, at + lot)});
  return ranges;
}

void Reducer::ShareValues(size_t arena) {
  Storage& storage = *arenas_[arena]->values().impl()->storage;
  if (!storage.is_writable_by_others()) group_->ShareMemory(storage);
  if (!storage.is_writable_by_others()) return;
  // A rank whose share of the batch was empty has had no pass, and so has no copy.
  std::vector<int64_t> some_rank_has_copy;
  for (const ParameterArena::Entry& entry : arenas_[arena]->entries()) {
    const auto& copy = entry.parameter.tensor.impl()->low_precision;
    some_rank_has_copy.push_back(copy != nullptr && copy->dtype == DType::kBF16 &&
                                 !copy->storage->is_writable_by_others());
  }
  group_->AllReduce(std::span(some_rank_has_copy), ReduceOp::kMax);
  std::vector<std::pair<Tensor, int64_t>> copied;  // the parameters and their copies' places
  int64_t size = 0;
  for (size_t i = 0; i < some_rank_has_copy.size(); ++i) {
    if (some_rank_has_copy[i] == 0) continue;
    const Tensor& parameter = arenas_[arena]->entries()[i].parameter.tensor;
    copied.emplace_back(parameter, size);
    size += RoundUp(parameter.numel(), kCopyAlignment);
  }
  if (size == 0) return;
  const Tensor copies = Tensor::Zeros({size}, DType::kBF16);
  const auto copy_of = [&](const Tensor& parameter, int64_t place) {
    return copies.Slice(place, place + parameter.numel()).Reshape(parameter.shape());
  };
  for (const auto& [parameter, place] : copied) copy_of(parameter, place).CopyFrom(parameter);
  group_->ShareMemory(*copies.impl()->storage);
  if (!copies.impl()->storage->is_writable_by_others()) return;
  for (const auto& [parameter, place] : copied) {
    parameter.impl()->low_precision = copy_of(parameter, place).impl();
    parameter.impl()->low_precision_version = parameter.impl()->storage->version();
  }
}

bool Reducer::IsOutdated(const std::vector<Parameter>& parameters) const {
  // Those that were trained have the hook.
  const auto has_changed = [](const Parameter& p) {
    return p.tensor.requires_grad() != (p.tensor.impl()->gradient().on_ready != nullptr);
  };
  return std::ranges::any_of(parameters, has_changed) ||
         std::ranges::any_of(arenas_, [&](const auto& arena) {
           return arena->values().device() != layout_.device ||
                  std::ranges::any_of(arena->entries(), has_changed,
                                      &ParameterArena::Entry::parameter);
         });
}

}  // namespace lathe
