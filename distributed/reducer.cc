#include "lathe/distributed/reducer.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/distributed/collectives.h"
#include "lathe/distributed/used_rows.h"

namespace lathe {
namespace {

constexpr int64_t kFloatBytes = 4;
// A table below this travels whole, and a last bucket's end of this size is copied to make room for
// the records.
constexpr int64_t kTailBytes = 64 << 10;

constexpr char kPartialGradHint[] =
    "processes share out the optimizer's work; to read gradients after Backward, set "
    "AcceleratorOptions::shard_optimizer to false";

// The layout, for ranks to compare.
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

}  // namespace

struct Reducer::Impl {
  // A parameter that takes part.
  struct Slot {
    std::string name;
    Tensor tensor;
    size_t bucket;
    int parts = 0;     // of its gradient that have come in this pass
    int expected = 0;  // that came in the pass before; 0: not known
  };
  struct Bucket {
    std::span<float> grads;  // with the gaps between parameters
    size_t arena;
    int64_t offset;  // of its first element in the arena
    std::vector<size_t> slots;
    size_t shared_out = 0;  // so many of its first elements
    size_t waiting = 0;     // slots that are not ready
  };

  Impl(std::shared_ptr<ProcessGroup> g, std::vector<std::shared_ptr<ParameterArena>> a,
       ReducerOptions o, const std::vector<bool>& shared_out)
      : group(std::move(g)), arenas(std::move(a)), options(std::move(o)) {
    Check(options.compression == "no" || options.compression == "bf16", "reducer",
          "gradient_compression must be \"no\" or \"bf16\" but is \"", options.compression, "\"");
    CheckSame(*group, "preflight", Describe(arenas, options),
              "run the same program with the same options on all ranks");
    MakeBuckets();
    ShareOut(shared_out);
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].tensor.impl()->on_grad_ready = [this, i] { OnReady(i); };
    }
  }

  ~Impl() {
    for (Slot& slot : slots) slot.tensor.impl()->on_grad_ready = nullptr;
    if (!thread.joinable()) return;
    {
      const std::lock_guard lock(mutex);
      quit = true;
    }
    changed.notify_all();
    thread.join();
  }

  void MakeBuckets() {
    for (size_t a = 0; a < arenas.size(); ++a) {
      float* grads = arenas[a]->RawGrads().data<float>();
      const auto& entries = arenas[a]->entries();
      bool grows = false;  // buckets don't go across arenas or frozen parameters
      for (size_t i = 0; i < entries.size(); ++i) {
        const Tensor& tensor = entries[i].parameter.tensor;
        was_trained[tensor.impl().get()] = tensor.requires_grad();
        if (!tensor.requires_grad()) {
          grows = false;
          continue;
        }
        const int64_t end =
            i + 1 < entries.size() ? entries[i + 1].offset : arenas[a]->values().numel();
        const std::span<float> part(grads + entries[i].offset,
                                    static_cast<size_t>(end - entries[i].offset));
        if (grows) {
          std::span<float>& last = buckets.back().grads;
          last = {last.data(), last.size() + part.size()};
        } else {
          buckets.push_back({part, a, entries[i].offset, {}});
        }
        buckets.back().slots.push_back(slots.size());
        slots.push_back({entries[i].parameter.name, tensor, buckets.size() - 1});
        const int64_t limit =
            buckets.size() == 1 ? options.first_bucket_bytes : options.bucket_bytes;
        const bool next_is_last_table = i + 2 == entries.size() && IsLargeTable(entries[i + 1]);
        grows =
            static_cast<int64_t>(buckets.back().grads.size_bytes()) < limit && !next_is_last_table;
      }
    }
    Check(!buckets.empty(), "reducer", "no parameter requires a gradient");
    const auto& last = arenas.back()->entries().back();
    table_is_last = IsLargeTable(last) && last.parameter.tensor.requires_grad();
  }

  // The last bucket's end, or whole table, goes with the records and to everybody.
  void ShareOut(const std::vector<bool>& shared_out) {
    for (Bucket& bucket : buckets) {
      const bool is_last = &bucket == &buckets.back();
      if (bucket.arena >= shared_out.size() || !shared_out[bucket.arena]) continue;
      if (is_last && table_is_last) continue;
      bucket.shared_out = bucket.grads.size() - (is_last ? TailOf(bucket) : 0);
    }
  }

  static size_t TailOf(const Bucket& bucket) {
    return std::min(bucket.grads.size(), static_cast<size_t>(kTailBytes / kFloatBytes));
  }

  // Of the bucket's elements, in the arena.
  ElementRange SharedPart(const Bucket& bucket) const {
    return {bucket.offset, bucket.offset + static_cast<int64_t>(bucket.shared_out)};
  }

  static bool IsLargeTable(const ParameterArena::Entry& entry) {
    return entry.parameter.is_table && entry.parameter.tensor.bytes() > kTailBytes &&
           entry.parameter.tensor.ndim() == 2;
  }

  // --- on the thread of the backward pass ---

  void Arm(bool reduce) {
    for (const auto& arena : arenas) arena->RawGrads();  // those set by hand come back
    if (std::exchange(summed, false)) {
      for (const Bucket& bucket : buckets) CountSumOnce(bucket);
    }
    Check(!broken, "reducer", "an earlier backward pass has failed; the ranks no longer agree");
    armed = broken = reduce;
    if (!armed) return;
    for (Bucket& bucket : buckets) bucket.waiting = bucket.slots.size();
    for (Slot& slot : slots) slot.parts = 0;
    if (options.overlap && !thread.joinable()) thread = std::thread([this] { Work(); });
  }

  // What is summed must not be added as often as there are ranks: what all have, each has a part
  // of, and a stripe its owner.
  void CountSumOnce(const Bucket& bucket) {
    const float size = static_cast<float>(group->size());
    for (const size_t i : bucket.slots) {
      TensorImpl& p = *slots[i].tensor.impl();
      p.partial_grad_hint = nullptr;
      if (p.grad_is_stale) continue;
      if (bucket.shared_out == 0) {
        p.grad_scale /= size;
        continue;
      }
      float* const grad = Tensor(p.grad).data<float>();
      const ElementRange all = {p.offset, p.offset + NumElements(p.shape)};
      const ElementRange own = Stripe(SharedPart(bucket), group->rank(), group->size());
      for (const ElementRange& rest : Without(all, {own})) {
        for (int64_t at = rest.begin; at < rest.end; ++at) {
          float& g = grad[at - all.begin];
          g = at < SharedPart(bucket).end ? 0 : g / size;  // others' may be NaN
        }
      }
    }
  }

  void OnReady(size_t i) {
    if (!armed) return;
    Slot& slot = slots[i];
    if (++slot.parts != slot.expected) {
      if (slot.expected == 0 || slot.parts < slot.expected || slot.bucket >= sent) return;
      throw Error(absl::StatusCode::kFailedPrecondition,
                  "[reducer] the gradient of parameter " + slot.name +
                      " came in more parts than in the step before, after it had been sent",
                  "where steps differ so, set AcceleratorOptions::reducer.overlap to false");
    }
    --buckets[slot.bucket].waiting;
    if (!options.overlap) return;
    // The last one is Finish's.
    while (sent + 1 < buckets.size() && buckets[sent].waiting == 0) Send();
  }

  // The next bucket goes on its way.
  void Send() {
    for (const size_t i : buckets[sent].slots) {
      TensorImpl& p = *slots[i].tensor.impl();
      ClearStaleGrad(p);
      if (p.grad_scale != 1) slots[i].tensor.grad();  // multiplies
    }
    {
      const std::lock_guard lock(mutex);
      ++sent;
    }
    changed.notify_all();
  }

  std::vector<StepRecord> Finish(const StepRecord& mine) {
    armed = false;
    while (sent + 1 < buckets.size()) Send();
    Send();
    if (thread.joinable()) {
      WaitForThread();
    } else {
      while (done + 1 < sent) Reduce(buckets[done++]);
    }
    std::vector<StepRecord> records = ReduceLast(mine);
    {
      const std::lock_guard lock(mutex);
      sent = done = 0;
    }
    for (Slot& slot : slots) {
      slot.expected = slot.parts;
      TensorImpl& p = *slot.tensor.impl();
      const bool is_last_table = table_is_last && &slot == &slots.back();
      if (!is_last_table) p.grad_rows.reset();
      if (buckets[slot.bucket].shared_out > 0) p.partial_grad_hint = kPartialGradHint;
    }
    summed = true;
    broken = false;
    return records;
  }

  void WaitForThread() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return error || done + 1 >= sent; });
    if (!error) return;
    std::rethrow_exception(std::exchange(error, nullptr));
  }

  // --- on the thread that reduces ---

  void Work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock,
                   [&] { return quit || (!error && done < sent && done + 1 < buckets.size()); });
      if (quit) return;
      Bucket& bucket = buckets[done];
      lock.unlock();
      std::exception_ptr caught;
      try {
        Reduce(bucket);
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      error = caught;
      ++done;
      changed.notify_all();
    }
  }

  // All of the bucket, but the last one's end.
  void Reduce(const Bucket& bucket) {
    const bool is_last = &bucket == &buckets.back();
    const size_t size = bucket.grads.size() - (is_last ? TailOf(bucket) : 0);
    if (bucket.shared_out == 0) return AllReduce(bucket.grads.first(size));
    const ElementRange all = {0, static_cast<int64_t>(size)};
    Exchange(bucket.grads.first(size), Stripe(all, group->rank(), group->size()),
             [this](auto values) { group->ReduceScatter(values); });
  }

  void AllReduce(std::span<float> values) {
    Exchange(values, {0, std::ssize(values)}, [this](auto v) { group->AllReduce(v); });
  }

  // `reduce` on the values, in the format in which they travel; `result` is what comes back.
  template <typename Reduction>
  void Exchange(std::span<float> values, ElementRange result, Reduction reduce) {
    if (options.compression == "no") return reduce(values);
    narrow.resize(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(),
                   [](float v) { return BFloat16(v); });
    reduce(std::span(narrow));
    std::transform(narrow.begin() + result.begin, narrow.begin() + result.end,
                   values.begin() + result.begin, [](BFloat16 v) { return static_cast<float>(v); });
  }

  // --- the last bucket, with the records ---

  std::vector<StepRecord> ReduceLast(const StepRecord& mine) {
    Bucket& bucket = buckets.back();
    const size_t size = static_cast<size_t>(group->size());
    std::vector<float> records(kStepRecordFloats * size);
    const auto packed = Pack(mine);
    std::copy(packed.begin(), packed.end(),
              records.begin() + static_cast<std::ptrdiff_t>(kStepRecordFloats) * group->rank());
    if (!table_is_last || !ReduceRows(records)) {
      const size_t tail = TailOf(bucket);
      const std::span<float> end = bucket.grads.last(tail);
      Reduce(bucket);
      staging.assign(end.begin(), end.end());
      staging.insert(staging.end(), records.begin(), records.end());
      ReduceStaging(records.size());
      std::copy_n(staging.begin(), tail, end.begin());
      if (table_is_last) slots.back().tensor.impl()->grad_rows.reset();
      std::copy(staging.end() - std::ssize(records), staging.end(), records.begin());
    }
    std::vector<StepRecord> all;
    for (size_t rank = 0; rank < size; ++rank)
      all.push_back(Unpack(records.data() + kStepRecordFloats * rank));
    return all;
  }

  // Records stay as they are, whatever the compression of gradients.
  void ReduceStaging(size_t num_records) {
    if (options.compression == "no") return group->AllReduce(std::span(staging));
    const std::span<float> all(staging);
    AllReduce(all.first(all.size() - num_records));
    group->AllReduce(all.last(num_records));
  }

  // Only the rows that some rank has written. False if all of the table has to travel.
  bool ReduceRows(std::vector<float>& records) {
    TensorImpl& table = *slots.back().tensor.impl();
    const size_t width = static_cast<size_t>(table.shape[1]);
    std::optional<std::vector<int32_t>> used = UsedRows(*group, table);
    if (!used) return false;
    const std::vector<int32_t>& rows = *used;
    float* grad = buckets.back().grads.data();
    staging.resize(rows.size() * width + records.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(staging.data() + i * width, grad + static_cast<size_t>(rows[i]) * width,
                  width * kFloatBytes);
    }
    std::copy(records.begin(), records.end(), staging.end() - std::ssize(records));
    ReduceStaging(records.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(grad + static_cast<size_t>(rows[i]) * width, staging.data() + i * width,
                  width * kFloatBytes);
    }
    std::copy(staging.end() - std::ssize(records), staging.end(), records.begin());
    table.grad_rows = std::move(used);
    return true;
  }

  std::shared_ptr<ProcessGroup> group;
  std::vector<std::shared_ptr<ParameterArena>> arenas;
  ReducerOptions options;
  std::vector<Slot> slots;
  std::vector<Bucket> buckets;
  absl::flat_hash_map<const TensorImpl*, bool> was_trained;
  bool table_is_last = false;  // and has a bucket of its own
  bool armed = false;
  bool broken = false;  // in a pass, and after one that failed
  bool summed = false;  // gradients are those of all ranks
  std::vector<float> staging;
  std::vector<BFloat16> narrow;

  // Buckets [done, sent) are on their way; the thread leaves the last one alone.
  std::mutex mutex;
  std::condition_variable changed;
  size_t sent = 0, done = 0;
  std::exception_ptr error;
  bool quit = false;
  std::thread thread;
};

Reducer::Reducer(std::shared_ptr<ProcessGroup> group,
                 std::vector<std::shared_ptr<ParameterArena>> arenas, ReducerOptions options,
                 const std::vector<bool>& shared_out)
    : impl_(std::make_unique<Impl>(std::move(group), std::move(arenas), std::move(options),
                                   shared_out)) {}
Reducer::~Reducer() = default;

void Reducer::BeforeBackward(bool reduce) { impl_->Arm(reduce); }
std::vector<StepRecord> Reducer::Finish(const StepRecord& mine) { return impl_->Finish(mine); }

void Reducer::Abandon() { impl_->armed = false; }

std::vector<ElementRange> Reducer::SharedParts(size_t arena) const {
  std::vector<ElementRange> parts;
  for (const Impl::Bucket& bucket : impl_->buckets) {
    if (bucket.arena == arena && bucket.shared_out > 0) parts.push_back(impl_->SharedPart(bucket));
  }
  return parts;
}

bool Reducer::Outdated() const {
  return std::any_of(impl_->was_trained.begin(), impl_->was_trained.end(),
                     [](const auto& p) { return p.first->requires_grad != p.second; });
}

}  // namespace lathe
