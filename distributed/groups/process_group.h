// The processes of a job and their collectives. Every rank makes the same calls in the same order,
// with the same number of elements.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/base/error.h"
#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/collective_times.h"

namespace lathe {

enum class ReduceOp { kSum, kMax, kMin };

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // The times of this rank's collectives. Only Gloo's groups measure them.
  CollectiveTimes& times() { return times_; }

  // All calls throw Unavailable when a rank has ended, hangs for longer than the timeout or can't
  // be reached. The error names the rank that is to blame, as far as it can be told. After that the
  // group can't be used, and the memory that the call was to fill has undefined contents.

  // data = the sum (or other reduction) over all ranks, elementwise, with the same bits on each. A
  // sum with a NaN is NaN. A maximum or a minimum may pass over a NaN, and backends differ there.
  // So look for NaNs before.
  virtual void AllReduce(std::span<float> data, ReduceOp op = ReduceOp::kSum) = 0;
  virtual void AllReduce(std::span<double> data, ReduceOp op = ReduceOp::kSum) = 0;
  virtual void AllReduce(std::span<int64_t> data, ReduceOp op = ReduceOp::kSum) = 0;
  // The halves of an all-reduce: ReduceScatter and AllGatherStripes.
  // After ReduceScatter, this rank's stripe of `data` (core/base/element_range.h) = the sum over
  // all ranks. The rest has undefined contents. It must be left alone until the group's next call:
  // others may be late to read it.
  virtual void ReduceScatter(std::span<float> data) { AllReduce(data); }
  // Sums as AllReduce and ReduceScatter give them, but values may travel between machines in
  // bfloat16. They are added in float32. What travels is rounded once: each machine's sum and,
  // after an all-reduce, the result. Without other machines nothing is rounded.
  virtual void AllReduceCompressed(std::span<float> data) { AllReduce(data); }
  virtual void ReduceScatterCompressed(std::span<float> data) { ReduceScatter(data); }
  // In each range of `data`: every rank's stripe = that rank's values. Elements outside of
  // `changed` are the same on all ranks and need not travel. `changed` is ascending, its ranges are
  // apart from each other, and it is the same on all ranks. If the call fails, some stripes may
  // have arrived.
  virtual void AllGatherStripes(std::span<float> data, const std::vector<ElementRange>& ranges,
                                const std::vector<ElementRange>& /*changed*/) {
    for (const ElementRange& range : ranges) {
      for (int rank = 0; rank < size_; ++rank) {
        const ElementRange own = StripeOfRank(range, rank, size_);
        const std::span<float> stripe(data.begin() + own.begin, data.begin() + own.end);
        Broadcast(std::as_writable_bytes(stripe), rank);
      }
    }
  }
  // Gathers the ranges of `data`, [n] float32, as AllGatherStripes does, but may return before all
  // is there. The tensor's storage then gets its arrivals (core/tensor.h). The last range
  // comes first. The group's other calls wait until all ranges have come.
  virtual void BeginAllGatherStripes(const Tensor& data, const std::vector<ElementRange>& ranges,
                                     const std::vector<ElementRange>& changed) {
    AllGatherStripes(data.values<float>(), ranges, changed);
  }
  // Returns true if ranks read each other's memory, so that small pieces travel as well as large
  // ones. It is the same on all ranks.
  virtual bool reads_memory() const { return false; }
  // From now on the storage's bytes are rank 0's, in memory that all ranks have in common: what one
  // rank writes, all have. Every rank gives the same number of bytes. Nothing changes, on any rank,
  // if ranks don't read each other's memory or if the storage doesn't have pages of its own.
  // Storage::is_writable_by_others tells whether the memory is shared.
  virtual void ShareMemory(Storage& /*storage*/) {}
  // Moves the storage's first `bytes`, the same number on each rank, into memory that the other
  // ranks of its machine read directly. They do so as long as the returned object lives; what is
  // reduced there need not be copied. Returns null, and changes nothing, if a machine's ranks don't
  // read each other's memory, or if the storage doesn't have pages of its own.
  virtual std::shared_ptr<const void> ExposeMemory(const std::shared_ptr<Storage>& /*storage*/,
                                                   int64_t /*bytes*/) {
    return nullptr;
  }
  // all = every rank's `mine`, in the order of ranks.
  virtual void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // data = that of rank `root`.
  virtual void Broadcast(std::span<std::byte> data, int root) = 0;
  // Returns when all ranks have called it.
  virtual void Barrier() = 0;

  // For long work without any of the calls above. Throws as they do if another rank has ended, or
  // has given no sign of life for the timeout. It costs next to nothing: loops over prepared
  // loaders call it with each batch and op, backward passes with each gradient. It works in Gloo's
  // groups; every job of several ranks has one, also beside NCCL's. In other groups it does
  // nothing, and neither does SetAlarm.
  virtual void CheckPeers() {}
  // For work that can't even make that call, such as reading a file that doesn't come. Another
  // thread calls `alarm` with CheckPeers' error, a second after a rank is lost. `alarm` is meant to
  // end the process. An empty function stops this.
  virtual void SetAlarm(const std::function<void(const Error&)>& /*alarm*/) {}

  // Call this when the rank ends with an error. It then doesn't wait for the other ranks, and waits
  // at most half a second for each answer of rank 0. The other ranks will see it as lost.
  virtual void Abandon() {}
  // Sets what this rank is doing from now on, for the others' error messages: "training".
  virtual void SetPhase(const std::string& phase) = 0;

  // Messages between ranks outside of any collective, for what may take any time. Each key is
  // posted once, or with the same value each time. AwaitMessage waits for the message of rank
  // `from`, as long as all ranks live and that rank's work is not done.
  virtual void PostMessage(const std::string& key, const std::string& value) = 0;
  virtual std::string AwaitMessage(const std::string& key, int from) = 0;
  // Returns what is posted under the key now or within `time`; nullopt if nothing is.
  // FindMessage and PostMessage throw if rank 0, which keeps the messages, has ended or hangs.
  virtual std::optional<std::string> FindMessage(const std::string& key,
                                                 std::chrono::milliseconds time) = 0;

 protected:
  ProcessGroup(int rank, int size) : rank_(rank), size_(size) {}
  // Throw InvalidArgument for arguments of AllGather and Broadcast that don't fit.
  void CheckGatherSizes(std::span<const std::byte> mine, std::span<std::byte> all) const {
    const size_t expected = mine.size() * static_cast<size_t>(size_);
    Check(all.size() == expected, "all_gather", "expected room for ", expected, " bytes of ", size_,
          " ranks but got ", all.size(), " bytes");
  }
  void CheckRoot(int root) const {
    Check(root >= 0 && root < size_, "broadcast", "expected a root from 0 to ", size_ - 1,
          " but got ", root);
  }

 private:
  int rank_, size_;
  CollectiveTimes times_;
};

}  // namespace lathe
