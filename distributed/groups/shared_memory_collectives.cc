#include "lathe/distributed/groups/shared_memory_collectives.h"

#include <absl/cleanup/cleanup.h>
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
#include "lathe/distributed/groups/shared_memory_internal.h"
#include "lathe/distributed/liveness/peer_watch.h"

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

std::unique_ptr<SharedMemoryCollectives> SharedMemoryCollectives::Connect(
    int rank, int size, const GatherBytes& gather) {
  // Where the kernel lets a process read only its descendants' memory, this lets all processes of
  // the same user read this one's.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const int64_t bytes = size * static_cast<int64_t>(sizeof(Slot));
  // A value by which others recognise this process: in another container, another process may have
  // the same process id.
  uint64_t mark = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint64_t>(rank);
  mark ^= reinterpret_cast<uintptr_t>(&mark) * 0x9E3779B97F4A7C15u;
  struct Hello {
    pid_t pid;
    int file;
    const uint64_t* at;
    uint64_t mark;
  };
  Hello mine = {getpid(), -1, &mark, mark};
  char* pages = nullptr;
  const absl::Cleanup clean_up = [&] {
    if (mine.file >= 0) close(mine.file);
    if (pages != nullptr) munmap(pages, static_cast<size_t>(bytes));
  };
  if (rank == 0) {
    const MemoryFile made = MakeMemoryFile("lathe ranks", bytes);
    mine.file = made.file;
    pages = made.pages;
  }
  std::vector<Hello> all(static_cast<size_t>(size));
  gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));

  const bool reads = std::all_of(all.begin(), all.end(), [](const Hello& other) {
    return CanRead(other.pid, other.at, other.mark);
  });
  if (rank != 0 && reads) pages = MapFileOf(all[0].pid, all[0].file, bytes);
  const std::byte answer{reads && pages != nullptr ? uint8_t{1} : uint8_t{0}};
  std::vector<std::byte> answers(static_cast<size_t>(size));
  gather(std::span(&answer, 1), answers);
  if (std::ranges::count(answers, std::byte{0}) > 0) return nullptr;
  std::unique_ptr<SharedMemoryCollectives> local(new SharedMemoryCollectives(rank, size));
  auto* const slots = reinterpret_cast<Slot*>(std::exchange(pages, nullptr));  // all zeros at first
  local->slots_ = {slots, static_cast<size_t>(size)};
  local->slots_[static_cast<size_t>(rank)].pid = mine.pid;
  return local;
}

SharedMemoryCollectives::~SharedMemoryCollectives() { munmap(slots_.data(), slots_.size_bytes()); }

// Announces that this rank has reached the next stage. Returns when all ranks have.
void SharedMemoryCollectives::WaitForAll(const OnWait& on_wait) {
  constexpr int kSpins = 2000;  // about 20 microseconds
  const timespec pause = {.tv_sec = 0, .tv_nsec = 50'000'000};
  std::atomic<uint32_t>& mine = slots_[static_cast<size_t>(rank_)].stage;
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

const SharedMemoryCollectives::Part& SharedMemoryCollectives::PartOf(int rank) const {
  return slots_[static_cast<size_t>(rank)].parts[turn_];
}

// Begins a call. On return, all ranks are ready for it and have finished the one before. They know
// where each rank's data is; small data lies in their parts. Throws if the ranks are not in the
// same call.
void SharedMemoryCollectives::Begin(Call call, const void* data, size_t bytes,
                                    const OnWait& on_wait) {
  turn_ ^= 1;
  Part& mine = slots_[static_cast<size_t>(rank_)].parts[turn_];
  mine.data = static_cast<const char*>(data);
  mine.call = static_cast<uint64_t>(call) << 56 | bytes;
  PublishLocation(mine, mine.data, bytes);
  if (bytes <= kSmallBytes) std::memcpy(mine.small, data, bytes);
  WaitForAll(on_wait);
  for (int rank = 0; rank < size_; ++rank) {
    if (PartOf(rank).call != mine.call) throw CallsDiffer();
  }
}

// Reads from another rank's data in this call; `at` is an offset in bytes.
void SharedMemoryCollectives::Read(int rank, size_t at, void* to, size_t bytes) const {
  ReadFrom(slots_[static_cast<size_t>(rank)].pid, PartOf(rank).data + at, to, bytes);
}

// Combines this rank's stripe with the other ranks' values of it, in the order of ranks.
void SharedMemoryCollectives::ReduceOwn(char* data, size_t n, size_t element_size,
                                        Combine combine) {
  constexpr size_t kChunkBytes = 256 << 10;  // stays in the level 2 cache
  alignas(64) static thread_local char chunk[kChunkBytes];
  const ElementRange stripe = StripeOfRank({0, static_cast<int64_t>(n)}, rank_, size_);
  const size_t end = static_cast<size_t>(stripe.end);
  for (size_t at = static_cast<size_t>(stripe.begin); at < end;) {
    const size_t count = std::min(end - at, kChunkBytes / element_size);
    char* const own = data + at * element_size;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const char* theirs = ViewOf(rank);
      if (theirs != nullptr) {
        theirs += at * element_size;
      } else {
        Read(rank, at * element_size, chunk, count * element_size);
        theirs = chunk;
      }
      combine(own, own, theirs, count);
    }
    at += count;
  }
}

// Computes the stripe of rank `owner` from the ranks' parts, with the same bits as ReduceOwn.
void SharedMemoryCollectives::CombineSmall(int owner, char* data, size_t n, size_t element_size,
                                           Combine combine) const {
  const ElementRange stripe = StripeOfRank({0, static_cast<int64_t>(n)}, owner, size_);
  const size_t at = static_cast<size_t>(stripe.begin) * element_size;
  const size_t count = static_cast<size_t>(stripe.size());
  if (count == 0) return;
  std::memcpy(data + at, PartOf(owner).small + at, count * element_size);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != owner) combine(data + at, data + at, PartOf(rank).small + at, count);
  }
}

void SharedMemoryCollectives::AllReduce(void* data, size_t n, size_t element_size, Combine combine,
                                        const OnWait& on_wait) {
  char* const bytes = static_cast<char*>(data);
  Begin(Call::kAllReduce, data, n * element_size, on_wait);
  if (n * element_size <= kSmallBytes) {
    for (int owner = 0; owner < size_; ++owner)
      CombineSmall(owner, bytes, n, element_size, combine);
    return;
  }
  ReduceOwn(bytes, n, element_size, combine);
  WaitForAll(on_wait);
  for (int rank = 0; rank < size_; ++rank) {
    const ElementRange stripe = StripeOfRank({0, static_cast<int64_t>(n)}, rank, size_);
    const size_t at = static_cast<size_t>(stripe.begin) * element_size;
    if (rank == rank_ || stripe.size() == 0) continue;
    Read(rank, at, bytes + at, static_cast<size_t>(stripe.size()) * element_size);
  }
  WaitForAll(on_wait);
}

void SharedMemoryCollectives::ReduceScatter(void* data, size_t n, size_t element_size,
                                            Combine combine, const OnWait& on_wait) {
  Begin(Call::kReduceScatter, data, n * element_size, on_wait);
  ReduceOwn(static_cast<char*>(data), n, element_size, combine);
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

// Returns what this rank has to read: the other ranks' stripes of `ranges`, where they are in
// `changed`.
std::vector<ReadBatch> PlanReads(int self, int size, char* data, size_t element_size,
                                 const std::vector<ElementRange>& ranges,
                                 const std::vector<ElementRange>& changed) {
  constexpr size_t kGapBytes = 2 << 10;  // gaps of up to this size are read, too
  std::vector<ReadBatch> reads;
  for (int i = 1; i < size; ++i) {  // so that not all ranks read from the same one first
    const int rank = (self + i) % size;
    for (const ElementRange& range : ranges) {
      char* end_of_last = nullptr;  // the end of the last piece of this range
      for (const ElementRange& piece : Intersection(StripeOfRank(range, rank, size), changed)) {
        char* at = data + static_cast<size_t>(piece.begin) * element_size;
        char* const end = data + static_cast<size_t>(piece.end) * element_size;
        if (end_of_last != nullptr && static_cast<size_t>(at - end_of_last) <= kGapBytes)
          at = end_of_last;
        end_of_last = end;
        while (at < end) {
          if (reads.empty() || reads.back().from != rank || reads.back().IsFull())
            reads.push_back({rank, {}});
          at += reads.back().Add(at, static_cast<size_t>(end - at));
        }
      }
    }
  }
  return reads;
}

}  // namespace

void SharedMemoryCollectives::AllGather(void* data, const std::vector<ElementRange>& ranges,
                                        const std::vector<ElementRange>& changed,
                                        size_t element_size, const OnWait& on_wait) {
  const std::vector<ReadBatch> reads =
      PlanReads(rank_, size_, static_cast<char*>(data), element_size, ranges, changed);
  Begin(Call::kAllGather, data, kNoBytes, on_wait);
  std::exception_ptr error;
#pragma omp parallel for schedule(static)
  for (const ReadBatch& read : reads) {
    try {
      std::vector<iovec> mine = read.pieces, theirs = read.pieces;
      for (iovec& piece : theirs) {
        piece.iov_base = const_cast<char*>(PartOf(read.from).data) +
                         (static_cast<char*>(piece.iov_base) - static_cast<char*>(data));
      }
      ReadFrom(slots_[static_cast<size_t>(read.from)].pid, theirs, mine);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  WaitForAll(on_wait);
}

void SharedMemoryCollectives::Gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                     const OnWait& on_wait) {
  Begin(Call::kGather, mine.data(), mine.size(), on_wait);
  const bool is_small = mine.size() <= kSmallBytes;
  for (int rank = 0; rank < size_; ++rank) {
    std::byte* const to = all.data() + mine.size() * static_cast<size_t>(rank);
    if (is_small || rank == rank_) {
      std::memcpy(to, is_small ? PartOf(rank).small : mine.data(), mine.size());
    } else {
      Read(rank, 0, to, mine.size());
    }
  }
  if (!is_small) WaitForAll(on_wait);
}

}  // namespace lathe
