// The ranks of one machine, which read each other's memory. They add up data about three times as
// fast as over TCP.
//
//   Differences differences = ranks.Publish(signature, data, bytes, LocalRanks::kLarge, on_wait);
//   ranks.Combine(own_stripe, sizeof(float), add);  // reads the other ranks' data
//   ranks.WaitForAll(on_wait);
//   ranks.Read(place, offset, to, size);            // from what that rank has published
//   ranks.WaitForAll(on_wait);                      // nobody reads this rank's data any more
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/call_signature.h"

namespace lathe {

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
    ~Newcomer();
    Newcomer(const Newcomer&) = delete;
    Newcomer& operator=(const Newcomer&) = delete;
    const Hello& hello() const { return hello_; }
    // `hellos` are those of the machine's ranks, in the order of their places. Returns null if this
    // rank can't read the memory of all, as in separate containers or under a kernel that forbids
    // it. All newcomers must live until all have returned from it.
    std::unique_ptr<LocalRanks> Meet(const std::vector<Hello>& hellos, int place);

   private:
    uint64_t mark_;
    Hello hello_;
    int num_ranks_;
    char* pages_ = nullptr;
  };

  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  int place() const { return place_; }
  int size() const { return size_; }

  // All waits call `on_wait` at intervals while other ranks are late; it may throw.
  using OnWait = std::function<void()>;
  // to[i] = the reduction of a[i] and b[i], for `n` elements.
  using Combiner = void (*)(void* to, const void* a, const void* b, size_t n);

  // Data of up to this size may be published as small. Publish copies it into memory that all ranks
  // share, so it may change at once.
  static constexpr size_t kSmallBytes = 8 << 10;
  enum class DataSize { kSmall, kLarge };
  static DataSize DataSizeOf(size_t bytes) {
    return bytes <= kSmallBytes ? DataSize::kSmall : DataSize::kLarge;
  }

  // Lets the others read this rank's data, and returns when all ranks have published theirs, and so
  // have finished what they did before. Returns in what the ranks' signatures differ.
  Differences Publish(const CallSignature& signature, const void* data, size_t bytes, DataSize size,
                      const OnWait& on_wait);
  // Returns when all ranks have called it.
  void WaitForAll(const OnWait& on_wait);

  // The calls below read what ranks have published last. Ranks must not change what others read.

  // data[range] of this rank = the reduction over all ranks: its own values, then the others' in
  // the order of places.
  void Combine(ElementRange range, size_t element_size, Combiner combine);
  // Sets all of this rank's small data to the reduction, with the same bits on each rank.
  void CombineSmall(size_t num_elements, size_t element_size, Combiner combine);
  void Read(int place, size_t at, void* to, size_t bytes) const;
  // Reads, into this rank's data, stripes of `ranges` where they are in `changed`. `sources[r]` is
  // the place of the rank that has the stripes of rank r. With `parallel` all OpenMP threads read.
  void ReadStripes(const std::vector<int>& sources, const std::vector<ElementRange>& ranges,
                   const std::vector<ElementRange>& changed, size_t element_size, bool parallel);

  // Defined in local_ranks_mapping.cc.
  // The storage's bytes become those of the first rank, in memory that all ranks map (see
  // ProcessGroup::ShareMemory).
  void Share(Storage& storage, const OnWait& on_wait);
  // See ProcessGroup::ExposeMemory.
  std::shared_ptr<const void> Expose(const std::shared_ptr<Storage>& storage, int64_t bytes,
                                     const OnWait& on_wait);

 private:
  struct Part;
  struct Slot;
  struct ExposedMemory;
  LocalRanks(int place, int size) : place_(place), size_(size) {}
  const Part& PartOf(int place) const;
  void PublishLocation(Part& part, const char* data, size_t bytes) const;
  const char* ViewOf(int place) const;
  template <typename T>
  std::vector<T> GatherEach(const T& mine, const OnWait& on_wait);

  int place_, size_;
  std::span<Slot> slots_;  // one for each rank, in memory that all ranks share
  uint32_t stage_ = 0;
  size_t turn_ = 0;       // the index of the part (Slot::parts) that ranks use now
  char* data_ = nullptr;  // what this rank has published last
  bool is_small_ = false;
  std::vector<std::weak_ptr<const ExposedMemory>> exposed_;
  uint64_t times_exposed_ = 0;
};

}  // namespace lathe
