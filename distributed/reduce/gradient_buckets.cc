#include "lathe/distributed/reduce/gradient_buckets.h"

#include <algorithm>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

constexpr int64_t kFloatBytes = 4;
// A table of up to this size travels whole. In the last bucket, as many bytes at the end are copied
// next to the records, so that both travel together.
constexpr int64_t kTailBytes = 64 << 10;

bool IsLargeTable(const ParameterArena::Entry& entry) {
  return entry.parameter.is_table && entry.parameter.tensor.bytes() > kTailBytes &&
         entry.parameter.tensor.ndim() == 2;
}

}  // namespace

GradientBuckets::GradientBuckets(const std::vector<std::shared_ptr<ParameterArena>>& arenas,
                                 const ReducerOptions& options, const std::vector<bool>& sharded) {
  for (size_t a = 0; a < arenas.size(); ++a) {
    const Tensor& all = arenas[a]->RawGrads();
    if (a == 0) device = all.device();
    Check(all.device() == device, "reducer", "some parameters lie on ", ToString(device),
          " and some on ", ToString(all.device()), "; Prepare all models");
    float* grads = all.data<float>();
    const auto& entries = arenas[a]->entries();
    bool grows = false;
    for (size_t i = 0; i < entries.size(); ++i) {
      const Tensor& tensor = entries[i].parameter.tensor;
      if (!tensor.requires_grad()) {
        grows = false;
        continue;
      }
      const int64_t end =
          i + 1 < entries.size() ? entries[i + 1].offset : arenas[a]->values().numel();
      const std::span<float> range(grads + entries[i].offset,
                                   static_cast<size_t>(end - entries[i].offset));
      if (grows) {
        buckets.back().grads = {buckets.back().grads.data(), range.data() + range.size()};
      } else {
        buckets.push_back({range, a, entries[i].offset, {}});
      }
      buckets.back().slots.push_back(slots.size());
      slots.push_back({entries[i].parameter.name, tensor, buckets.size() - 1});
      const int64_t limit = buckets.size() == 1 ? options.first_bucket_bytes : options.bucket_bytes;
      const bool next_is_last_table = i + 2 == entries.size() && IsLargeTable(entries[i + 1]);
      grows =
          static_cast<int64_t>(buckets.back().grads.size_bytes()) < limit && !next_is_last_table;
    }
  }
  Check(!buckets.empty(), "reducer", "no parameter requires a gradient");
  const auto& last_entry = arenas.back()->entries().back();
  table_is_last = IsLargeTable(last_entry) && last_entry.parameter.tensor.requires_grad();
  // The end of the last bucket, or the whole last table, travels with the records, and all ranks
  // get it.
  for (GradientBucket& bucket : buckets) {
    if (bucket.arena >= sharded.size() || !sharded[bucket.arena]) continue;
    if (IsLast(bucket) && table_is_last) continue;
    bucket.num_sharded_elements = bucket.grads.size() - (IsLast(bucket) ? TailOf(bucket) : 0);
  }
}

size_t GradientBuckets::TailOf(const GradientBucket& bucket) {
  return std::min(bucket.grads.size(), static_cast<size_t>(kTailBytes / kFloatBytes));
}

}  // namespace lathe
