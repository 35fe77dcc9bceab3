#include "lathe/distributed/groups/local_ranks.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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
#include <utility>
#include <vector>

#include "lathe/core/pages.h"
#include "lathe/distributed/groups/local_ranks_internal.h"

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

void ReadFrom(pid_t pid, const char* from, void* to, size_t size) {
  iovec theirs = {const_cast<char*>(from), size}, mine = {to, size};
  if (size > 0) ReadFrom(pid, std::span(&theirs, 1), std::span(&mine, 1));
}

bool CanRead(pid_t pid, const uint64_t* from, uint64_t expected) {
  try {
    uint64_t value = 0;
    ReadFrom(pid, reinterpret_cast<const char*>(from), &value, sizeof value);
    return value == expected;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace

LocalRanks::Newcomer::Newcomer(int num_ranks) : num_ranks_(num_ranks) {
  // Where the kernel lets a process read only its descendants' memory, this lets all processes of
  // the same user read this one's.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  // A value by which others recognise this process: in another container, another process may have
  // the same process id.
  mark_ = (static_cast<uint64_t>(getpid()) << 32) ^
          reinterpret_cast<uintptr_t>(&mark_) * 0x9E3779B97F4A7C15u;
  hello_ = {getpid(), -1, &mark_, mark_};
  if (num_ranks == 0) return;
  const MemoryFile made =
      MakeMemoryFile("lathe ranks", num_ranks * static_cast<int64_t>(sizeof(Slot)));
  hello_.file = made.file;
  pages_ = made.pages;
}

LocalRanks::Newcomer::~Newcomer() {
  if (hello_.file >= 0) close(hello_.file);
  if (pages_ != nullptr) munmap(pages_, static_cast<size_t>(num_ranks_) * sizeof(Slot));
}

std::unique_ptr<LocalRanks> LocalRanks::Newcomer::Meet(const std::vector<Hello>& hellos,
                                                       int place) {
  for (const Hello& other : hellos) {
    if (!CanRead(other.pid, other.at, other.mark)) return nullptr;
  }
  const size_t bytes = hellos.size() * sizeof(Slot);
  char* const pages = place == 0
                          ? std::exchange(pages_, nullptr)
                          : MapFileOf(hellos[0].pid, hellos[0].file, static_cast<int64_t>(bytes));
  if (pages == nullptr) return nullptr;
  std::unique_ptr<LocalRanks> local(new LocalRanks(place, static_cast<int>(hellos.size())));
  auto* const slots = reinterpret_cast<Slot*>(pages);  // all zeros at first
  local->slots_ = {slots, hellos.size()};
  local->slots_[static_cast<size_t>(place)].pid = hello_.pid;
  return local;
}

LocalRanks::~LocalRanks() { munmap(slots_.data(), slots_.size_bytes()); }

void LocalRanks::WaitForAll(const OnWait& on_wait) {
  constexpr int kSpins = 2000;  // about 20 microseconds
  const timespec pause = {.tv_sec = 0, .tv_nsec = 50'000'000};
  std::atomic<uint32_t>& mine = slots_[static_cast<size_t>(place_)].stage;
  mine.store(++stage_, std::memory_order_release);
  Futex(mine, FUTEX_WAKE, INT32_MAX, nullptr);
  // The counters wrap around, so only their difference counts.
  const auto passed = [this](uint32_t other) { return static_cast<int32_t>(other - stage_) >= 0; };
  for (Slot& slot : slots_) {
    for (int i = 0; !passed(slot.stage.load(std::memory_order_acquire)); ++i) {
      if (i < kSpins) {
        __builtin_ia32_pause();
        continue;
      }
      const uint32_t stage = slot.stage.load(std::memory_order_acquire);
      if (passed(stage)) break;
      Futex(slot.stage, FUTEX_WAIT, stage, &pause);
      if (slot.stage.load(std::memory_order_acquire) != stage) continue;
      try {
        on_wait();
      } catch (...) {
        // A rank that has done its part may have ended since. If the awaited rank has reached this
        // stage by now, the call can go on.
        if (!passed(slot.stage.load(std::memory_order_acquire))) throw;
      }
    }
  }
}

const LocalRanks::Part& LocalRanks::PartOf(int place) const {
  return slots_[static_cast<size_t>(place)].parts[turn_];
}

Differences LocalRanks::Publish(const CallSignature& signature, const void* data, size_t bytes,
                                DataSize size, const OnWait& on_wait) {
  turn_ ^= 1;
  data_ = static_cast<char*>(const_cast<void*>(data));
  is_small_ = size == DataSize::kSmall;
  Part& mine = slots_[static_cast<size_t>(place_)].parts[turn_];
  mine.data = data_;
  mine.signature = signature;
  PublishLocation(mine, data_, bytes);
  if (is_small_ && bytes > 0) std::memcpy(mine.small, data, bytes);
  WaitForAll(on_wait);
  Differences differences = 0;
  for (int place = 0; place < size_; ++place)
    differences |= Compare(PartOf(place).signature, signature);
  return differences;
}

void LocalRanks::Read(int place, size_t at, void* to, size_t bytes) const {
  if (is_small_) {
    std::memcpy(to, PartOf(place).small + at, bytes);
  } else {
    ReadFrom(slots_[static_cast<size_t>(place)].pid, PartOf(place).data + at, to, bytes);
  }
}

void LocalRanks::Combine(ElementRange range, size_t element_size, Combiner combine) {
  constexpr size_t kChunkBytes = 256 << 10;  // stays in the level 2 cache
  alignas(64) static thread_local char chunk[kChunkBytes];
  const size_t end = static_cast<size_t>(range.end);
  for (size_t at = static_cast<size_t>(range.begin); at < end;) {
    const size_t count = std::min(end - at, kChunkBytes / element_size);
    char* const own = data_ + at * element_size;
    for (int place = 0; place < size_; ++place) {
      if (place == place_) continue;
      const char* theirs = ViewOf(place);
      if (theirs != nullptr) {
        theirs += at * element_size;
      } else {
        Read(place, at * element_size, chunk, count * element_size);
        theirs = chunk;
      }
      combine(own, own, theirs, count);
    }
    at += count;
  }
}

void LocalRanks::CombineSmall(size_t num_elements, size_t element_size, Combiner combine) {
  // Each rank's stripe is added up in the order in which Combine does it there.
  for (int owner = 0; owner < size_; ++owner) {
    const ElementRange stripe = StripeOfRank({0, static_cast<int64_t>(num_elements)}, owner, size_);
    const size_t at = static_cast<size_t>(stripe.begin) * element_size;
    const size_t count = static_cast<size_t>(stripe.size());
    std::memcpy(data_ + at, PartOf(owner).small + at, count * element_size);
    for (int place = 0; place < size_; ++place) {
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
      ReadFrom(slots_[static_cast<size_t>(read.from)].pid, theirs, mine);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lathe
