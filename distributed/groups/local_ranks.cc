#include "lathe/distributed/groups/local_ranks.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "lathe/core/base/round_up.h"
#include "lathe/core/pages.h"

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

// Bytes of a storage that are to move into a memory file: their number, and the file. Ranks tell
// each other theirs.
struct Offer {
  int64_t bytes = 0;
  int file = -1;
};

// Maps a memory file that another process has open. Returns null if that is not possible.
MappedPages MapFileOf(pid_t pid, int file, int64_t bytes, bool writes = true) {
  if (file < 0) return nullptr;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  const int opened = open(path.c_str(), (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (opened < 0) return nullptr;
  MappedPages pages(MapPages(bytes, opened, writes), Unmap{bytes});
  close(opened);
  return pages;
}

bool CanRead(const LocalRanks::Hello& other) {
  uint64_t value = 0;
  const iovec theirs = {const_cast<uint64_t*>(other.at), sizeof value};
  const iovec mine = {&value, sizeof value};
  return process_vm_readv(other.pid, &mine, 1, &theirs, 1, 0) > 0 && value == other.mark;
}

}  // namespace

SharedFile::SharedFile(const char* name, int64_t bytes, const Storage* from) {
  if (bytes == 0) return;
  const MemoryFile made = MakeMemoryFile(name, bytes);
  file = made.file;
  pages = MappedPages(made.pages, Unmap{bytes});
  if (pages == nullptr || from == nullptr) return;
  std::memcpy(pages.get(), from->data(), static_cast<size_t>(std::min(bytes, from->bytes())));
}

LocalRanks::Newcomer::Newcomer(int num_ranks)
    : slots_("lathe ranks", num_ranks * static_cast<int64_t>(sizeof(Slot))),
      // The mark is a value by which others recognise this process: in another container, another
      // process may have the same process id.
      hello_{getpid(), slots_.file, &hello_.mark,
             (static_cast<uint64_t>(getpid()) << 32) ^
                 reinterpret_cast<uintptr_t>(&hello_.mark) * 0x9E3779B97F4A7C15u} {
  // Where the kernel lets a process read only its descendants' memory, this lets all processes of
  // the same user read this one's.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

std::unique_ptr<LocalRanks> LocalRanks::Newcomer::Meet(const std::vector<Hello>& hellos,
                                                       int place) {
  if (!std::ranges::all_of(hellos, CanRead)) return nullptr;
  const auto bytes = static_cast<int64_t>(hellos.size() * sizeof(Slot));
  MappedPages pages =
      place == 0 ? std::move(slots_.pages) : MapFileOf(hellos[0].pid, hellos[0].file, bytes);
  if (pages == nullptr) return nullptr;
  return std::unique_ptr<LocalRanks>(new LocalRanks(place, hellos.size(), std::move(pages)));
}

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

// Returns the data that another rank has in this call if that rank exposes it, else null.
const char* LocalRanks::ViewOf(int place) const {
  const Part& part = PartOf(place);
  const auto found = exposed_.find(part.exposed);
  const auto exposed = found == exposed_.end() ? nullptr : found->second.lock();
  return exposed == nullptr ? nullptr
                            : exposed->views[static_cast<size_t>(place)].get() + part.begin;
}

Differences LocalRanks::Publish(const CallSignature& signature, std::span<const std::byte> data) {
  turn_ ^= 1;
  data_ = reinterpret_cast<char*>(const_cast<std::byte*>(data.data()));
  is_small_ = IsSmall(data.size()) && signature.call != Call::kAllGatherStripes;
  Part& mine = SlotOf(place_).parts[turn_];
  mine.data = data_;
  mine.signature = signature;
  mine.exposed = 0;
  for (const auto& [number, one] : exposed_) {
    const std::shared_ptr<const ExposedMemory> exposed = one.lock();
    const std::shared_ptr<Storage> storage = exposed == nullptr ? nullptr : exposed->storage.lock();
    if (storage == nullptr || storage->sharing() != Storage::Sharing::kOthersRead) continue;
    // Addresses are subtracted as numbers, since the data may lie anywhere. An address before the
    // storage's gives an offset that is too large.
    const uintptr_t begin =
        reinterpret_cast<uintptr_t>(data_) - reinterpret_cast<uintptr_t>(storage->data());
    if (begin > exposed->bytes || data.size() > exposed->bytes - begin) continue;
    mine.exposed = number;
    mine.begin = begin;
  }
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
  static constexpr size_t kMostBytes = 1 << 20, kMostPieces = 512;
  int from;
  std::vector<iovec> pieces;
  size_t bytes = 0;
};

// Returns what this rank has to read. `sources`: see ReadStripes.
std::vector<ReadBatch> PlanReads(int self, const std::vector<int>& sources, char* data,
                                 size_t element_size, const std::vector<ElementRange>& ranges,
                                 const std::vector<ElementRange>& changed) {
  constexpr size_t kGapBytes = 2 << 10;  // gaps of up to this size are read, too
  std::vector<ReadBatch> reads;
  // Adds to the last batch, and begins others as they get full.
  const auto add = [&](int from, size_t at, size_t end) {
    while (at < end) {
      if (reads.empty() || reads.back().from != from ||
          reads.back().bytes == ReadBatch::kMostBytes ||
          reads.back().pieces.size() == ReadBatch::kMostPieces)
        reads.push_back({from, {}});
      const size_t n = std::min(end - at, ReadBatch::kMostBytes - reads.back().bytes);
      reads.back().pieces.push_back({data + at, n});
      reads.back().bytes += n;
      at += n;
    }
  };
  const int size = static_cast<int>(sources.size());
  for (int i = 0; i < size; ++i) {
    const int rank = (self + i) % size;  // so that not all read from the same rank first
    const int source = sources[static_cast<size_t>(rank)];
    if (source == self) continue;
    for (const ElementRange& range : ranges) {
      size_t begin = 0, end = 0;  // of what is to be read together, in bytes
      for (const ElementRange& piece : Intersection(StripeOfRank(range, rank, size), changed)) {
        const size_t at = static_cast<size_t>(piece.begin) * element_size;
        if (begin == end || at - end > kGapBytes) {
          add(source, begin, end);
          begin = at;
        }
        end = static_cast<size_t>(piece.end) * element_size;
      }
      add(source, begin, end);
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

template <typename T>
std::vector<T> LocalRanks::GatherEach(const T& mine) {
  Publish({}, std::as_bytes(std::span(&mine, 1)));
  std::vector<T> all(slots_.size());
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(all));
  for (size_t i = 0; i < all.size(); ++i)
    Read(static_cast<int>(i), 0, bytes.subspan(i * sizeof(T), sizeof(T)));
  return all;
}

void LocalRanks::Share(Storage& storage) {
  const int64_t bytes = storage.shareable_bytes();
  SharedFile own("lathe parameters", place_ == 0 ? bytes : 0, &storage);
  const Offer first = GatherEach(Offer{bytes, own.file})[0];
  if (place_ != 0 && first.bytes == bytes) own.pages = MapFileOf(SlotOf(0).pid, first.file, bytes);
  const std::vector<uint8_t> have = GatherEach(uint8_t{own.pages != nullptr});
  if (std::ranges::count(have, 0) > 0) return;
  storage.MapShared(own.pages.release(), bytes, Storage::Sharing::kOthersReadAndWrite);
}

std::shared_ptr<const void> LocalRanks::Expose(const std::shared_ptr<Storage>& storage,
                                               int64_t bytes) {
  const int64_t mapped = std::min(RoundUp(bytes, kPageBytes), storage->shareable_bytes());
  const uint64_t number = ++times_exposed_;
  SharedFile own("lathe gradients", mapped, storage.get());
  const std::vector<Offer> offers = GatherEach(Offer{mapped, own.file});
  const auto exposed = std::make_shared<ExposedMemory>();
  exposed->storage = storage;
  exposed->bytes = static_cast<size_t>(mapped);
  bool have_all = own.pages != nullptr;
  for (int place = 0; place < size(); ++place) {
    MappedPages& view = exposed->views.emplace_back();
    if (place == place_ || !have_all) continue;
    const Offer& theirs = offers[static_cast<size_t>(place)];
    if (theirs.bytes == mapped)
      view = MapFileOf(SlotOf(place).pid, theirs.file, mapped, /*writes=*/false);
    have_all = view != nullptr;
  }
  const std::vector<uint8_t> have = GatherEach(uint8_t{have_all});
  if (std::ranges::count(have, 0) > 0) return nullptr;
  storage->MapShared(own.pages.release(), mapped, Storage::Sharing::kOthersRead);
  // The latest Expose of a storage replaces earlier ones.
  std::erase_if(exposed_, [&](const auto& one) {
    const auto before = one.second.lock();
    return before == nullptr || before->storage.lock() == storage;
  });
  exposed_[number] = exposed;
  return exposed;
}

}  // namespace lathe
