// All-reduce, its two halves (reduce-scatter and all-gather), and a gather of small data, among
// processes of one machine that may read each other's memory. They are about three times as fast as
// over TCP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"

namespace lathe {

class SharedMemoryCollectives {
 public:
  // all = every rank's `mine`.
  using GatherBytes =
      std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)>;
  // Tries out whether all ranks can reach each other's memory. Returns null on all ranks if they
  // can't, as in separate containers or under a kernel that forbids it.
  static std::unique_ptr<SharedMemoryCollectives> Connect(int rank, int size,
                                                          const GatherBytes& gather);
  ~SharedMemoryCollectives();
  SharedMemoryCollectives(const SharedMemoryCollectives&) = delete;
  SharedMemoryCollectives& operator=(const SharedMemoryCollectives&) = delete;

  using OnWait = std::function<void()>;
  // to[i] = the reduction of a[i] and b[i], for `n` elements.
  using Combine = void (*)(void* to, const void* a, const void* b, size_t n);
  // All calls below call `on_wait` at intervals while other ranks are late; it may throw. Other
  // processes only read this one's memory, and only until the call returns or throws. There are two
  // exceptions: after ReduceScatter they may still read, and all ranks write to memory given to
  // Share.

  // data = the reduction over all ranks, taken in one order, on each rank.
  void AllReduce(void* data, size_t n, size_t element_size, Combine combine, const OnWait& on_wait);
  // Does the same for this rank's stripe only (core/base/element_range.h), with the same bits. The
  // rest of the data stays as it is, and must until the next call returns: other ranks may be late
  // to read it.
  void ReduceScatter(void* data, size_t n, size_t element_size, Combine combine,
                     const OnWait& on_wait);
  // In each range of `data`: every rank's stripe = that rank's values, where they are in `changed`.
  // Runs on all OpenMP threads.
  void AllGather(void* data, const std::vector<ElementRange>& ranges,
                 const std::vector<ElementRange>& changed, size_t element_size,
                 const OnWait& on_wait);

  // Defined in shared_memory_mapping.cc.
  // The storage's bytes become rank 0's, in memory that all ranks map (see
  // ProcessGroup::ShareMemory).
  void Share(Storage& storage, const OnWait& on_wait);
  // See ProcessGroup::ExposeMemory.
  std::shared_ptr<const void> Expose(const std::shared_ptr<Storage>& storage, int64_t bytes,
                                     const OnWait& on_wait);

  // all = every rank's `mine`; all ranks give the same number of bytes.
  void Gather(std::span<const std::byte> mine, std::span<std::byte> all, const OnWait& on_wait);

 private:
  // Data of up to this size goes through memory that all ranks share, except ReduceScatter's.
  static constexpr size_t kSmallBytes = 8 << 10;
  static constexpr size_t kNoBytes = (size_t{1} << 56) - 1;  // a size that no data has

  struct Part;
  struct Slot;
  struct ExposedMemory;
  enum class Call : uint8_t { kAllReduce, kReduceScatter, kAllGather, kGather };
  SharedMemoryCollectives(int rank, int size) : rank_(rank), size_(size) {}
  void Begin(Call call, const void* data, size_t bytes, const OnWait& on_wait);
  void WaitForAll(const OnWait& on_wait);
  const Part& PartOf(int rank) const;
  void PublishLocation(Part& part, const char* data, size_t bytes) const;
  const char* ViewOf(int rank) const;
  void Read(int rank, size_t at, void* to, size_t bytes) const;
  template <typename T>
  std::vector<T> GatherEach(const T& mine, const OnWait& on_wait);
  void CombineSmall(int owner, char* data, size_t n, size_t element_size, Combine combine) const;
  void ReduceOwn(char* data, size_t n, size_t element_size, Combine combine);

  int rank_, size_;
  std::span<Slot> slots_;  // one for each rank, in memory that all ranks share
  uint32_t stage_ = 0;
  size_t turn_ = 0;  // the index of the part (Slot::parts) that ranks use in this call
  std::vector<std::weak_ptr<const ExposedMemory>> exposed_;
  uint64_t times_exposed_ = 0;
};

}  // namespace lathe
