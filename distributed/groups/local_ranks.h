// The ranks of one machine, which read each other's memory. They add up data about three times as
// fast as over TCP.
//
//   ranks.SetOnWait(check_that_all_live);
//   Differences differences = ranks.Publish(signature, data);
//   ranks.Combine(own_stripe, sizeof(float), add);  // reads the other ranks' data
//   ranks.WaitForAll();
//   ranks.Read(place, offset, to);                  // from what that rank has published
//   ranks.WaitForAll();                             // nobody reads this rank's data any more
#pragma once

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/call_signature.h"

namespace lathe {

// Pages that the last owner unmaps.
struct Unmap {
  int64_t bytes = 0;
  void operator()(char* pages) const { munmap(pages, static_cast<size_t>(bytes)); }
};
using MappedPages = std::unique_ptr<char, Unmap>;

// A memory file that others map, and its pages here. Others can map it as long as the object lives.
struct SharedFile {
  // Begins with the contents of `from`, unless that is null. Without bytes there is no file.
  SharedFile(const char* name, int64_t bytes, const Storage* from = nullptr);
  ~SharedFile() {
    if (file >= 0) close(file);
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  int file = -1;      // negative if there is no room
  MappedPages pages;  // null if there is no room
};

class LocalRanks {
 public:
  // What a rank tells the others of its machine, so that they try to read its memory.
  struct Hello {
    pid_t pid;
    int file;            // of the memory that all will share, at the first rank
    const uint64_t* at;  // where `mark` lies in its memory
    uint64_t mark;
  };
  // A rank that has not yet met the others.
  class Newcomer {
   public:
    // `num_ranks`: of the machine, if this rank is its first, else 0.
    explicit Newcomer(int num_ranks);
    const Hello& hello() const { return hello_; }
    // `hellos` are those of the machine's ranks, in the order of their places. Returns null if this
    // rank can't read the memory of all, as in separate containers or under a kernel that forbids
    // it. All newcomers must live until all have returned from it.
    std::unique_ptr<LocalRanks> Meet(const std::vector<Hello>& hellos, int place);

   private:
    SharedFile slots_;
    const Hello hello_;
  };

  int place() const { return place_; }
  int size() const { return static_cast<int>(slots_.size()); }

  // All waits call `on_wait` at intervals while other ranks are late; it may throw.
  void SetOnWait(std::function<void()> on_wait) { on_wait_ = std::move(on_wait); }
  // to[i] = the reduction of a[i] and b[i], for `n` elements.
  using Combiner = void (*)(void* to, const void* a, const void* b, size_t n);

  // Data of up to 8 KiB is small. Publish copies it into memory that all ranks share, so it may
  // change at once.
  static constexpr size_t kSmallBytes = 8 << 10;
  static constexpr bool IsSmall(size_t bytes) { return bytes <= kSmallBytes; }

  // Lets the others read this rank's data, and returns when all ranks have published theirs, and so
  // have finished what they did before. Returns in what the ranks' signatures differ. What a
  // kAllGatherStripes publishes counts as large: ReadStripes reads it where it lies.
  Differences Publish(const CallSignature& signature, std::span<const std::byte> data);
  // Returns when all ranks have called it.
  void WaitForAll();

  // The calls below read what ranks have published last. Ranks must not change what others read.

  // data[range] of this rank = the reduction over all ranks: its own values, then the others' in
  // the order of places.
  void Combine(ElementRange range, size_t element_size, Combiner combine);
  // Sets all of this rank's small data to the reduction, with the same bits on each rank.
  void CombineSmall(size_t num_elements, size_t element_size, Combiner combine);
  void Read(int place, size_t at, std::span<std::byte> to) const;
  // Reads, into this rank's data, stripes of `ranges` where they are in `changed`. `sources[r]` is
  // the place of the rank that has the stripes of rank r. With `parallel` all OpenMP threads read.
  void ReadStripes(const std::vector<int>& sources, const std::vector<ElementRange>& ranges,
                   const std::vector<ElementRange>& changed, size_t element_size, bool parallel);

  // The storage's bytes become those of the first rank, in memory that all ranks map (see
  // ProcessGroup::ShareMemory).
  void Share(Storage& storage);
  // See ProcessGroup::ExposeMemory.
  std::shared_ptr<const void> Expose(const std::shared_ptr<Storage>& storage, int64_t bytes);

 private:
  // What a rank has published.
  struct alignas(64) Part {
    const char* data;
    CallSignature signature;
    // If the data lies in memory that the rank exposes: that memory's key in exposed_, and the
    // data's offset in it, in bytes. Otherwise `exposed` is 0.
    uint64_t exposed, begin;
    alignas(64) std::byte small[kSmallBytes];
  };
  // A rank's state, which all ranks read. `stage` counts up without end. A rank uses its two parts
  // in turn. It may publish the next time while others still read its part, but not the time after.
  struct alignas(64) Slot {
    std::atomic<uint32_t> stage;
    pid_t pid;
    Part parts[2];
  };
  // Memory that this rank exposes to the others, and its views of the memory that they expose.
  struct ExposedMemory {
    std::weak_ptr<Storage> storage;
    size_t bytes;
    std::vector<MappedPages> views;  // by place; null for this one
  };

  // `pages`: of `size` slots, all zeros at first.
  LocalRanks(int place, size_t size, MappedPages pages)
      : place_(place),
        pages_(std::move(pages)),
        slots_(reinterpret_cast<Slot*>(pages_.get()), size) {
    SlotOf(place).pid = getpid();
  }
  Slot& SlotOf(int place) const { return slots_[static_cast<size_t>(place)]; }
  const Part& PartOf(int place) const { return SlotOf(place).parts[turn_]; }
  const char* ViewOf(int place) const;
  template <typename T>
  std::vector<T> GatherEach(const T& mine);

  int place_;
  MappedPages pages_;      // of slots_
  std::span<Slot> slots_;  // one for each rank, in memory that all ranks share
  std::function<void()> on_wait_ = [] {};
  uint32_t stage_ = 0;
  size_t turn_ = 0;       // the index of the part (Slot::parts) that ranks use now
  char* data_ = nullptr;  // what this rank has published last
  bool is_small_ = false;
  // By numbers that are the same on all ranks, counted from 1.
  std::map<uint64_t, std::weak_ptr<const ExposedMemory>> exposed_;
  uint64_t times_exposed_ = 0;
};

}  // namespace lathe
