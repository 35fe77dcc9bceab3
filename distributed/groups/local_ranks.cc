#include "lathe/distributed/groups/local_ranks.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

namespace lathe {
namespace {

void Futex(std::atomic<uint32_t>& word, int op, uint32_t value, const timespec* timeout) {
  static_assert(sizeof word == 4 && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, &word, op, value, timeout, nullptr, 0);
}

// Copies pieces of another process's memory to pieces of the same sizes here, at most 1,024.
// Changes both lists.
void ReadFrom(pid_t pid, std::span<iovec> from, std::span<iovec> to) {
  while (!from.empty()) {
    const ssize_t got = process_vm_readv(pid, to.data(), to.size(), from.data(), from.size(), 0);
    if (got <= 0) {
      throw std::runtime_error(std::string("process_vm_readv: ") +
                               (got < 0 ? std::strerror(errno) : "nothing there"));
    }
    size_t done = static_cast<size_t>(got);
    while (!from.empty() && done >= from[0].iov_len) {
      done -= from[0].iov_len;
      from = from.subspan(1);
      to = to.subspan(1);
    }
    if (done == 0) continue;
    for (iovec* piece : {&from[0], &to[0]}) {
      piece->iov_base = static_cast<char*>(piece->iov_base) + done;
      piece->iov_len -= done;
    }
  }
}

}  // namespace

void LocalRanks::WaitForAll() {
  constexpr int kSpins = 2000;  // about 20 microseconds
  const timespec pause = {.tv_sec = 0, .tv_nsec = 50'000'000};
  std::atomic<uint32_t>& mine = SlotOf(place_).stage;
  mine.store(++stage_, std::memory_order_release);
  Futex(mine, FUTEX_WAKE, INT32_MAX, nullptr);
  // The counters wrap around, so only their difference counts.
  const auto passed = [this](uint32_t other) { return static_cast<int32_t>(other - stage_) >= 0; };
  for (Slot& slot : slots_) {
    for (int i = 0;; ++i) {
      const uint32_t stage = slot.stage.load(std::memory_order_acquire);
      if (passed(stage)) break;
      if (i < kSpins) {
        __builtin_ia32_pause();
        continue;
      }
      Futex(slot.stage, FUTEX_WAIT, stage, &pause);
      if (slot.stage.load(std::memory_order_acquire) != stage) continue;
      try {
        on_wait_();
      } catch (...) {
        // A rank that has done its part may have ended since. If the awaited rank has reached this
        // stage by now, the call can go on.
        if (!passed(slot.stage.load(std::memory_order_acquire))) throw;
      }
    }
  }
}

Differences LocalRanks::Publish(const CallSignature& signature, std::span<const std::byte> data) {
  turn_ ^= 1;
  data_ = reinterpret_cast<char*>(const_cast<std::byte*>(data.data()));
  is_small_ = IsSmall(data.size()) && signature.call != Call::kAllGatherStripes;
  Part& mine = SlotOf(place_).parts[turn_];
  mine.data = data_;
  mine.signature = signature;
  PublishLocation(mine, data.size());
  if (is_small_ && !data.empty()) std::memcpy(mine.small, data.data(), data.size());
  WaitForAll();
  Differences differences = 0;
  for (int place = 0; place < size(); ++place)
    differences |= Compare(PartOf(place).signature, signature);
  return differences;
}

void LocalRanks::Read(int place, size_t at, std::span<std::byte> to) const {
  if (to.empty()) return;
  const Part& part = PartOf(place);
  if (is_small_) {
    std::memcpy(to.data(), part.small + at, to.size());
  } else {
    iovec theirs = {const_cast<char*>(part.data) + at, to.size()}, mine = {to.data(), to.size()};
    ReadFrom(SlotOf(place).pid, std::span(&theirs, 1), std::span(&mine, 1));
  }
}

void LocalRanks::Combine(ElementRange range, size_t element_size, Combiner combine) {
  constexpr size_t kChunkBytes = 256 << 10;  // stays in the level 2 cache
  alignas(64) static thread_local std::byte chunk[kChunkBytes];
  const size_t end = static_cast<size_t>(range.end);
  for (size_t at = static_cast<size_t>(range.begin); at < end;) {
    const size_t count = std::min(end - at, kChunkBytes / element_size);
    char* const own = data_ + at * element_size;
    for (int place = 0; place < size(); ++place) {
      if (place == place_) continue;
      const char* const view = ViewOf(place);
      if (view == nullptr) Read(place, at * element_size, {chunk, count * element_size});
      combine(own, own, view == nullptr ? static_cast<void*>(chunk) : view + at * element_size,
              count);
    }
    at += count;
  }
}

void LocalRanks::CombineSmall(size_t num_elements, size_t element_size, Combiner combine) {
  // Each rank's stripe is added up in the order in which Combine does it there.
  for (int owner = 0; owner < size(); ++owner) {
    const ElementRange stripe =
        StripeOfRank({0, static_cast<int64_t>(num_elements)}, owner, size());
    const size_t at = static_cast<size_t>(stripe.begin) * element_size;
    const size_t count = static_cast<size_t>(stripe.size());
    std::memcpy(data_ + at, PartOf(owner).small + at, count * element_size);
    for (int place = 0; place < size(); ++place) {
      if (place != owner) combine(data_ + at, data_ + at, PartOf(place).small + at, count);
    }
  }
}

namespace {

// Pieces that are read at once from one rank. They lie at the same offsets in its data as in this
// rank's data.
struct ReadBatch {
  int from;
  std::vector<iovec> pieces;
  size_t bytes = 0;

  // Returns how many of the bytes fit.
  size_t Add(char* at, size_t most) {
    const size_t added = std::min(most, kMostBytes - bytes);
    if (!pieces.empty() &&
        static_cast<char*>(pieces.back().iov_base) + pieces.back().iov_len == at) {
      pieces.back().iov_len += added;
    } else {
      pieces.push_back({at, added});
    }
    bytes += added;
    return added;
  }
  bool IsFull() const { return bytes >= kMostBytes || pieces.size() == kMostPieces; }

  static constexpr size_t kMostBytes = 1 << 20, kMostPieces = 512;
};

// Returns what this rank has to read. `sources`: see ReadStripes.
std::vector<ReadBatch> PlanReads(int self, const std::vector<int>& sources, char* data,
                                 size_t element_size, const std::vector<ElementRange>& ranges,
                                 const std::vector<ElementRange>& changed) {
  constexpr size_t kGapBytes = 2 << 10;  // gaps of up to this size are read, too
  std::vector<ReadBatch> reads;
  const int size = static_cast<int>(sources.size());
  for (int i = 0; i < size; ++i) {
    const int rank = (self + i) % size;  // so that not all read from the same rank first
    const int source = sources[static_cast<size_t>(rank)];
    if (source == self) continue;
    for (const ElementRange& range : ranges) {
      char* end_of_last = nullptr;  // the end of the last piece of this range
      for (const ElementRange& piece : Intersection(StripeOfRank(range, rank, size), changed)) {
        char* at = data + static_cast<size_t>(piece.begin) * element_size;
        char* const end = data + static_cast<size_t>(piece.end) * element_size;
        if (end_of_last != nullptr && static_cast<size_t>(at - end_of_last) <= kGapBytes)
          at = end_of_last;
        end_of_last = end;
        while (at < end) {
          if (reads.empty() || reads.back().from != source || reads.back().IsFull())
            reads.push_back({source, {}});
          at += reads.back().Add(at, static_cast<size_t>(end - at));
        }
      }
    }
  }
  return reads;
}

}  // namespace

void LocalRanks::ReadStripes(const std::vector<int>& sources,
                             const std::vector<ElementRange>& ranges,
                             const std::vector<ElementRange>& changed, size_t element_size,
                             bool parallel) {
  const std::vector<ReadBatch> reads =
      PlanReads(place_, sources, data_, element_size, ranges, changed);
  std::exception_ptr error;
#pragma omp parallel for schedule(static) if (parallel)
  for (const ReadBatch& read : reads) {
    try {
      std::vector<iovec> mine = read.pieces, theirs = read.pieces;
      for (iovec& piece : theirs) {
        piece.iov_base = const_cast<char*>(PartOf(read.from).data) +
                         (static_cast<char*>(piece.iov_base) - data_);
      }
      ReadFrom(SlotOf(read.from).pid, theirs, mine);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lathe
