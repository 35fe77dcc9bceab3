#include "lathe/core/cuda/runtime/pool.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <iterator>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/round_up.h"

namespace lathe::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kStep = 512;           // blocks' sizes are multiples of it
constexpr int64_t kLargestSmall = kMiB;  // larger requests have separate segments
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB;  // least segment for large requests
constexpr int64_t kLargeStep = 2 * kMiB;      // their sizes are multiples of it
// A large request splits a block only if at least this many bytes are left over.
constexpr int64_t kSmallestLargeRest = kMiB;

std::string Readable(int64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB"};
  int unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return unit == 0 ? absl::StrCat(bytes, " bytes") : absl::StrFormat("%.1f %s", value, units[unit]);
}

// Returns a hint that suits the present requester of memory.
const char* OutOfMemoryHint() {
  if (AllocatesState()) {
    return "parameters, gradients and the optimizer's state need the same memory for every batch "
           "(lathe estimate-memory says how much): use a smaller model or a device with more free "
           "memory; smaller batches, shorter sequences or no CUDA graphs leave them more room";
  }
  if (AllocatesInForwardOp() && !GradEnabled()) {
    return "use smaller batches for evaluation and predictions, or shorter sequences";
  }
  return "use a smaller batch, shorter sequences, mixed precision (bf16), gradient checkpointing "
         "or no "
         "CUDA graphs";
}

}  // namespace

void* Pool::Allocate(int64_t bytes) {
  Check(bytes >= 0 && bytes < int64_t{1} << 60, "cuda", "can't allocate ", bytes, " bytes");
  const int64_t size = RoundUp(std::max<int64_t>(bytes, 1), kStep);
  const bool small = size <= kLargestSmall;
  const std::lock_guard lock(mutex_);
  const FreeParts& fitting = FreePartsOf(small);
  const auto fit = fitting.lower_bound({size, nullptr});
  const auto part = fit != fitting.end() ? parts_.find(fit->second) : Grow(size, small);

  const auto [begin, available] = std::pair(part->first, part->second.bytes);
  FreeParts& free = FreePartsOf(segments_.at(part->second.segment).small);
  free.erase({available, begin});
  if (available - size >= (small ? kStep : kSmallestLargeRest)) {
    parts_.emplace_hint(std::next(part), begin + size,
                        Part{available - size, part->second.segment, false});
    free.emplace(available - size, begin + size);
    part->second.bytes = size;
  }
  part->second.used = true;

  PoolStatistics& s = statistics_;
  s.allocated += part->second.bytes;
  s.peak_allocated = std::max(s.peak_allocated, s.allocated);
  ++s.allocations;
  return begin;
}

void Pool::Free(void* memory) {
  const std::lock_guard lock(mutex_);
  auto part = parts_.find(static_cast<char*>(memory));
  if (part == parts_.end() || !part->second.used) return;
  statistics_.allocated -= part->second.bytes;
  part->second.used = false;
  char* const segment = part->second.segment;
  FreeParts& free = FreePartsOf(segments_.at(segment).small);

  const auto joins = [&](Parts::iterator other) {
    return other != parts_.end() && !other->second.used && other->second.segment == segment;
  };
  if (const auto next = std::next(part); joins(next)) {
    free.erase({next->second.bytes, next->first});
    part->second.bytes += next->second.bytes;
    parts_.erase(next);
  }
  if (part != parts_.begin() && joins(std::prev(part))) {
    const auto before = std::prev(part);
    free.erase({before->second.bytes, before->first});
    before->second.bytes += part->second.bytes;
    parts_.erase(part);
    part = before;
  }
  free.emplace(part->second.bytes, part->first);
}

// Returns a free part of at least `bytes`, in a new segment or, as a last resort, in one of the
// other kind.
Pool::Parts::iterator Pool::Grow(int64_t bytes, bool small) {
  const int64_t least = small ? kSmallSegment : RoundUp(bytes, kLargeStep);
  const int64_t wanted = small ? kSmallSegment : std::max(least, kLargeSegment);
  auto part = AddSegment(wanted, small);
  if (part == parts_.end() && least < wanted) part = AddSegment(least, small);
  if (part != parts_.end()) return part;
  if (device_.MayRelease()) {
    ++statistics_.retries;
    ReleaseFree();
    part = AddSegment(least, small);
    if (part != parts_.end()) return part;
  }
  if (small) {  // better a piece of a segment for large requests than none
    const FreeParts& free = FreePartsOf(false);
    if (const auto fit = free.lower_bound({bytes, nullptr}); fit != free.end()) {
      return parts_.find(fit->second);
    }
  }
  throw Error(absl::StatusCode::kResourceExhausted, OutOfMemoryMessage(bytes), OutOfMemoryHint());
}

Pool::Parts::iterator Pool::AddSegment(int64_t bytes, bool small) {
  auto* begin = static_cast<char*>(device_.Allocate(bytes));
  if (begin == nullptr) return parts_.end();
  segments_[begin] = {bytes, small};
  FreePartsOf(small).emplace(bytes, begin);
  PoolStatistics& s = statistics_;
  s.reserved += bytes;
  s.peak_reserved = std::max(s.peak_reserved, s.reserved);
  ++s.segments;
  return parts_.emplace(begin, Part{bytes, begin, false}).first;
}

void Pool::ReleaseFreeSegments() {
  const std::lock_guard lock(mutex_);
  ReleaseFree();
}

void Pool::ReleaseFree() {
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto [begin, what] = *segment;
    const auto part = parts_.find(begin);
    if (part->second.used || part->second.bytes != what.bytes) {
      ++segment;
      continue;
    }
    FreePartsOf(what.small).erase({what.bytes, begin});
    parts_.erase(part);
    segment = segments_.erase(segment);
    statistics_.reserved -= what.bytes;
    --statistics_.segments;
    device_.Release(begin);
  }
}

int64_t Pool::LargestFree() const {
  int64_t largest = 0;
  for (const FreeParts& free : free_) {
    if (!free.empty()) largest = std::max(largest, free.rbegin()->first);
  }
  return largest;
}

std::string Pool::OutOfMemoryMessage(int64_t bytes) {
  const SegmentSource::Room room = device_.Memory();
  const PoolStatistics& s = statistics_;
  const int64_t unused = s.reserved - s.allocated;
  const std::string allocation_source = CurrentAllocationTag();
  std::string why = absl::StrCat(
      "[cuda] out of memory: ",
      allocation_source.empty() ? absl::StrCat("a tensor asked for ", Readable(bytes))
                                : absl::StrCat(allocation_source, " asked for ", Readable(bytes)),
      "; tensors use ", Readable(s.allocated), " (", Readable(s.peak_allocated),
      " at most so far), ", Readable(s.reserved), " are reserved in ", s.segments, " segments, ",
      Readable(room.free), " of the device's ", Readable(room.total), " are free");
  if (room.recorded > 0) {
    absl::StrAppend(&why, ", ", Readable(room.recorded), " are reserved for CUDA graphs");
  }
  if (unused >= bytes) {
    absl::StrAppend(&why, "; the largest free piece of the reserved memory has ",
                    Readable(LargestFree()));
  }
  return why;
}

PoolStatistics Pool::Statistics() const {
  const std::lock_guard lock(mutex_);
  PoolStatistics s = statistics_;
  s.largest_free = LargestFree();
  return s;
}

void Pool::ResetPeaks() {
  const std::lock_guard lock(mutex_);
  statistics_.peak_allocated = statistics_.allocated;
  statistics_.peak_reserved = statistics_.reserved;
}

std::vector<Pool::Block> Pool::Blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> blocks;
  for (const auto& [begin, part] : parts_) {
    blocks.push_back({begin, part.bytes, part.segment, part.used});
  }
  return blocks;
}

}  // namespace lathe::cuda
