#include "lathe/distributed/reduce/reducer.h"

#include <absl/status/status.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/reduce/gradient_buckets.h"
#include "lathe/distributed/reduce/gradient_transport.h"

namespace lathe {
namespace {

constexpr char kPartialGradHint[] =
    "each process has only its part of the gradients; to read them after Backward, set "
    "AcceleratorOptions::shard_optimizer to false";

// Describes the layout of the parameters and the options, for ranks to compare.
NamedValues Describe(const std::vector<std::shared_ptr<ParameterArena>>& arenas,
                     const ReducerOptions& options) {
  NamedValues values = {{"bucket_bytes", std::to_string(options.bucket_bytes)},
                        {"first_bucket_bytes", std::to_string(options.first_bucket_bytes)},
                        {"gradient_compression", options.compression}};
  for (const auto& arena : arenas) {
    for (const ParameterArena::Entry& entry : arena->entries()) {
      std::ostringstream shape;
      shape << entry.parameter.tensor.shape()
            << (entry.parameter.tensor.requires_grad() ? "" : " frozen");
      values.emplace_back("parameter " + entry.parameter.name, shape.str());
    }
  }
  return values;
}

void CheckRanks(ProcessGroup& group, const std::vector<std::shared_ptr<ParameterArena>>& arenas,
                const ReducerOptions& options) {
  Check(options.compression == "no" || options.compression == "bf16", "reducer",
        "gradient_compression must be \"no\" or \"bf16\" but is \"", options.compression, "\"");
  CheckSame(group, "preflight", Describe(arenas, options),
            "run the same program with the same options on all ranks");
}

}  // namespace

struct Reducer::Impl {
  Impl(std::shared_ptr<ProcessGroup> g, std::vector<std::shared_ptr<ParameterArena>> a,
       ReducerOptions o, const std::vector<bool>& sharded, std::shared_ptr<NcclGroup> devices)
      : group(std::move(g)),
        arenas(std::move(a)),
        options(std::move(o)),
        layout(arenas, options, sharded) {
    transport = layout.device.is_cpu()
                    ? MakeHostTransport(group, layout, options)
                    : MakeDeviceTransport(group, std::move(devices), layout, options);
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].tensor.impl()->mutable_gradient().on_ready = [this, i] { OnReady(i); };
    }
  }

  ~Impl() {
    for (GradientSlot& slot : slots) slot.tensor.impl()->mutable_gradient().on_ready = nullptr;
  }

  void BeforeBackward(bool reduce) {
    for (const auto& arena : arenas)
      arena->RawGrads();  // restores gradients that were set by hand to the arena
    CountSumsOnce();
    Check(!broken, "reducer", "an earlier backward pass has failed; the ranks no longer agree");
    armed = broken = reduce;
    if (!armed) return;
    for (GradientBucket& bucket : buckets) bucket.waiting = bucket.slots.size();
    for (GradientSlot& slot : slots) slot.parts = 0;
    transport->Begin();
  }

  void CountSumsOnce() {
    if (!std::exchange(summed, false)) return;
    for (const GradientBucket& bucket : buckets) CountSumOnce(bucket);
  }

  // A gradient that is summed already must not be added again by every rank. Each rank keeps 1/size
  // of a gradient that all ranks have; a stripe stays with its owner.
  void CountSumOnce(const GradientBucket& bucket) {
    const float size = static_cast<float>(group->size());
    for (const size_t i : bucket.slots) {
      const TensorImpl& p = *slots[i].tensor.impl();
      LeafGradient& gradient = slots[i].tensor.impl()->mutable_gradient();
      gradient.partial_hint = nullptr;
      if (gradient.is_stale || gradient.buffer == nullptr) continue;
      if (bucket.num_sharded_elements == 0) {
        gradient.scale /= size;
        continue;
      }
      float* const grad = Tensor(gradient.buffer).data<float>();
      const ElementRange all = {p.offset, p.offset + NumElements(p.shape)};
      const ElementRange own = StripeOfRank(bucket.ShardedRange(), group->rank(), group->size());
      for (const ElementRange& rest : Difference(all, {own})) {
        for (int64_t at = rest.begin; at < rest.end; ++at) {
          float& g = grad[at - all.begin];
          g = at < bucket.ShardedRange().end ? 0
                                             : g / size;  // not multiplied by 0: others' may be NaN
        }
      }
    }
  }

  void OnReady(size_t i) {
    group->CheckPeers();  // a long pass does not go on without the other ranks
    if (!armed) return;
    GradientSlot& slot = slots[i];
    if (++slot.parts != slot.expected) {
      if (slot.expected == 0 || slot.parts < slot.expected || slot.bucket >= sent) return;
      throw Error(absl::StatusCode::kFailedPrecondition,
                  "[reducer] the gradient of parameter " + slot.name +
                      " came in more parts than in the step before, after it had been sent",
                  "set AcceleratorOptions::reducer.overlap to false if steps differ in this way");
    }
    --buckets[slot.bucket].waiting;
    if (!options.overlap) return;
    // Finish sends the last bucket.
    while (sent + 1 < buckets.size() && buckets[sent].waiting == 0) Send();
  }

  // Makes the buffer of the next bucket's gradients hold their values.
  void MaterializeGradients() {
    for (const size_t i : buckets[sent].slots) {
      LeafGradient& gradient = slots[i].tensor.impl()->mutable_gradient();
      ClearStaleGrad(gradient);
      // Multiplies the buffer by the factors, and forgets the rows.
      if (gradient.scale != 1 || gradient.device_scale != nullptr) {
        slots[i].tensor.MaterializeGrad();
      }
    }
  }

  // Sends the next bucket.
  void Send() {
    MaterializeGradients();
    ++sent;
    transport->Send();
  }

  std::vector<StepRecord> Finish(const StepRecord& mine) {
    armed = false;
    while (sent + 1 < buckets.size()) Send();
    MaterializeGradients();
    std::vector<StepRecord> records = transport->Finish(mine);
    sent = 0;
    for (GradientSlot& slot : slots) {
      slot.expected = slot.parts;
      LeafGradient& gradient = slot.tensor.impl()->mutable_gradient();
      const bool is_last_table = layout.table_is_last && &slot == &slots.back();
      if (!is_last_table) gradient.rows.reset();
      if (buckets[slot.bucket].num_sharded_elements > 0) gradient.partial_hint = kPartialGradHint;
    }
    summed = true;
    broken = false;
    return records;
  }

  const std::shared_ptr<ProcessGroup> group;
  const std::vector<std::shared_ptr<ParameterArena>> arenas;
  const ReducerOptions options;
  GradientBuckets layout;
  std::vector<GradientSlot>& slots = layout.slots;
  std::vector<GradientBucket>& buckets = layout.buckets;
  std::unique_ptr<GradientTransport> transport;
  size_t sent = 0;  // the number of buckets sent in this pass
  bool armed = false;
  bool broken = false;  // true in a pass, and after one that failed
  bool summed = false;  // true if the gradients are sums over all ranks
};

Reducer::Reducer(std::shared_ptr<ProcessGroup> group,
                 std::vector<std::shared_ptr<ParameterArena>> arenas, ReducerOptions options,
                 const std::vector<bool>& sharded, std::shared_ptr<NcclGroup> device_group) {
  CheckRanks(*group, arenas, options);
  impl_ = std::make_unique<Impl>(std::move(group), std::move(arenas), std::move(options), sharded,
                                 std::move(device_group));
}
Reducer::~Reducer() = default;

void Reducer::BeforeBackward(bool reduce) { impl_->BeforeBackward(reduce); }
std::vector<StepRecord> Reducer::Finish(const StepRecord& mine) { return impl_->Finish(mine); }

void Reducer::CountSumsOnce() { impl_->CountSumsOnce(); }

void Reducer::Abandon() { impl_->armed = false; }

std::vector<ElementRange> Reducer::ShardedRanges(size_t arena) const {
  std::vector<ElementRange> ranges;
  for (const GradientBucket& bucket : impl_->buckets) {
    if (bucket.arena == arena && bucket.num_sharded_elements > 0)
      ranges.push_back(bucket.ShardedRange());
  }
  const GradientBucket& last = impl_->buckets.back();
  if (last.arena != arena || !impl_->group->reads_memory()) return ranges;
  if (!impl_->layout.table_is_last) {
    const int64_t end = last.offset + std::ssize(last.grads);
    ranges.push_back({end - static_cast<int64_t>(impl_->layout.TailOf(last)), end});
    return ranges;
  }
  // Frequent tokens are neighbours in the table. So the table is cut into lots, which are short
  // ranges of its rows, and each rank gets a stripe of every lot.
  const TensorImpl& table = impl_->layout.last_tensor();
  const int64_t end = last.offset + NumElements(table.shape);
  const int64_t lot = 256 * impl_->group->size() * table.shape[1];
  for (int64_t at = last.offset; at < end; at += lot)
    ranges.push_back({at, std::min(end, at + lot)});
  return ranges;
}

bool Reducer::IsOutdated() const {
  const auto& arenas = impl_->arenas;
  const auto& was_trained = impl_->layout.was_trained;
  return std::any_of(arenas.begin(), arenas.end(),
                     [&](const auto& a) { return a->values().device() != impl_->layout.device; }) ||
         std::any_of(was_trained.begin(), was_trained.end(),
                     [](const auto& p) { return p.first->requires_grad != p.second; });
}

}  // namespace lathe
