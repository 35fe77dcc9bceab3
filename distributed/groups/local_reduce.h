// All-reduce and its two halves, about three times as fast as over TCP, and gathering of small
// things among the processes of one machine that may read each other's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/element_range.h"
#include "lathe/core/tensor.h"

namespace lathe {

class LocalReduce {
 public:
  // all = every rank's `mine`.
  using GatherBytes =
      std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)>;
  // Whether all ranks can reach each other's memory is tried out. Null on all ranks if they can't,
  // as in containers of their own, or under a kernel that doesn't let them.
  static std::unique_ptr<LocalReduce> Connect(int rank, int size, const GatherBytes& gather);
  ~LocalReduce();
  LocalReduce(const LocalReduce&) = delete;
  LocalReduce& operator=(const LocalReduce&) = delete;

  using OnWait = std::function<void()>;
  // to[i] = the reduction of to[i] and from[i], for `n` elements.
  using Combine = void (*)(void* to, const void* a, const void* b, size_t n);
  // In all of these, `on_wait` is called now and then while others are late, and may throw. Other
  // processes only read this one's memory, and only until the call returns or throws, but for
  // ReduceScatter and what Share has given to all.

  // data = all ranks' combined, in one order, on each.
  void AllReduce(void* data, size_t n, size_t element_size, Combine combine, const OnWait& on_wait);
  // The same for this rank's stripe (core/element_range.h), with the same bits; the rest stays, and
  // must until the next call returns: others may be late to read it.
  void ReduceScatter(void* data, size_t n, size_t element_size, Combine combine,
                     const OnWait& on_wait);
  // In each part of `data`, every rank's stripe = that rank's, where it is in `changed`. On all
  // OpenMP threads.
  void AllGather(void* data, const std::vector<ElementRange>& parts,
                 const std::vector<ElementRange>& changed, size_t element_size,
                 const OnWait& on_wait);

  // local_share.cc:
  // The storage's bytes become rank 0's in memory that all ranks map (ProcessGroup::ShareMemory).
  void Share(Storage& storage, const OnWait& on_wait);
  // ProcessGroup::ShowMemory.
  std::shared_ptr<const void> Show(const std::shared_ptr<Storage>& storage, int64_t bytes,
                                   const OnWait& on_wait);

  // all = every rank's `mine`, of as many bytes each.
  void Gather(std::span<const std::byte> mine, std::span<std::byte> all, const OnWait& on_wait);

 private:
  // What fits in here goes through memory that all share, but for ReduceScatter's data.
  static constexpr size_t kSmallBytes = 8 << 10;
  static constexpr size_t kNoBytes = (size_t{1} << 56) - 1;  // which nothing has

  struct Part;
  struct Slot;
  struct Shown;
  enum class Call : uint8_t { kAllReduce, kReduceScatter, kAllGather, kGather };
  LocalReduce(int rank, int size) : rank_(rank), size_(size) {}
  void Begin(Call call, const void* data, size_t bytes, const OnWait& on_wait);
  void WaitForAll(const OnWait& on_wait);
  const Part& PartOf(int rank) const;
  void SayWhere(Part& part, const char* data, size_t bytes) const;
  const char* ViewOf(int rank) const;
  void Read(int rank, size_t at, void* to, size_t bytes) const;
  template <typename T>
  std::vector<T> GatherEach(const T& mine, const OnWait& on_wait);
  void CombineSmall(int owner, char* data, size_t n, size_t element_size, Combine combine) const;
  void ReduceOwn(char* data, size_t n, size_t element_size, Combine combine);

  int rank_, size_;
  std::span<Slot> slots_;  // in memory that all share
  uint32_t stage_ = 0;
  size_t turn_ = 0;  // which of its slot's parts a rank speaks in
  std::vector<std::weak_ptr<const Shown>> shown_;
  uint64_t times_shown_ = 0;
};

}  // namespace lathe
