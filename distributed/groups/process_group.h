// The processes of a job and what they do together. Every rank makes the same calls in the same
// order, with as many elements.
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

#include "lathe/core/dtype.h"
#include "lathe/core/element_range.h"
#include "lathe/core/error.h"
#include "lathe/core/tensor.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

enum class ReduceOp { kSum, kMax, kMin };

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // All throw Unavailable, naming the rank that is to blame as far as it can be told, when a rank
  // has died, hangs for longer than the timeout or can't be reached. The group is of no use then,
  // and what the call was to fill holds anything.

  // data = the sum (or other) over all ranks, elementwise, the same bits on each. A NaN
  // stays one (but NCCL's maximum and minimum may pass over it). A maximum or minimum may lose it,
  // and backends differ there: look for it before.
  virtual void AllReduce(std::span<float> data, ReduceOp op = ReduceOp::kSum) = 0;
  virtual void AllReduce(std::span<double> data, ReduceOp op = ReduceOp::kSum) = 0;
  virtual void AllReduce(std::span<int64_t> data, ReduceOp op = ReduceOp::kSum) = 0;
  // Every partial sum is rounded.
  virtual void AllReduce(std::span<BFloat16> data, ReduceOp op = ReduceOp::kSum) = 0;
  // The halves of an all-reduce. This rank's stripe of `data` (core/element_range.h) = the sum over
  // all ranks; the rest then holds anything, and is left alone until the group's next call: others
  // may be late to read it.
  virtual void ReduceScatter(std::span<float> data) { AllReduce(data); }
  virtual void ReduceScatter(std::span<BFloat16> data) { AllReduce(data); }
  // In each part of `data`, every rank's stripe = that rank's. On failure some may be. What is not
  // in `changed` (ascending, apart from each other, the same on all ranks) is the same on all
  // ranks, and need not travel.
  virtual void AllGatherStripes(std::span<float> data, const std::vector<ElementRange>& parts,
                                const std::vector<ElementRange>& /*changed*/) {
    for (const ElementRange& part : parts) {
      for (int rank = 0; rank < size_; ++rank) {
        const ElementRange own = Stripe(part, rank, size_);
        Broadcast(std::as_writable_bytes(data.subspan(static_cast<size_t>(own.begin),
                                                      static_cast<size_t>(own.size()))),
                  rank);
      }
    }
  }
  // Whether ranks read each other's memory: small pieces travel as well as large ones. The same on
  // all ranks.
  virtual bool reads_memory() const { return false; }
  // From now on the storage's bytes, as many on each rank, are rank 0's, in memory that all ranks
  // have in common: what one writes, all have. Nothing changes, on any rank, where ranks don't read
  // each other's memory or the storage doesn't have pages of its own (Storage::is_shared).
  virtual void ShareMemory(Storage& /*storage*/) {}
  // The storage's first `bytes`, as many on each rank, move into memory that the other ranks read
  // directly as long as what is returned lives: what is reduced there need not be copied. Null, and
  // nothing changes, where ShareMemory changes nothing.
  virtual std::shared_ptr<const void> ShowMemory(const std::shared_ptr<Storage>& /*storage*/,
                                                 int64_t /*bytes*/) {
    return nullptr;
  }
  // all = every rank's `mine`, in the order of ranks.
  virtual void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // data = that of rank `root`.
  virtual void Broadcast(std::span<std::byte> data, int root) = 0;
  // Returns when all ranks have called it.
  virtual void Barrier() = 0;

  // For long work without any of the calls above (loops over prepared loaders make it with each
  // batch and op, backward passes with each gradient): throws as they do if another rank has ended,
  // or hasn't given a sign of life for the timeout. Costs next to nothing. Gloo's groups have it,
  // which every job has beside NCCL's; the others' does nothing, and neither does their SetAlarm.
  virtual void CheckPeers() {}
  // For work that can't even make that call, such as reading a file that doesn't come: `alarm` is
  // called on another thread a second after a rank is lost, with CheckPeers' error. It is meant to
  // end the process. Empty: no more.
  virtual void SetAlarm(const std::function<void(const Error&)>& /*alarm*/) {}

  // This rank ends with an error: it doesn't wait for the others, nor longer than half a second for
  // a word from rank 0, and they shall miss it.
  virtual void Abandon() {}
  // What this rank is doing from now on, for the others' error messages: "training".
  virtual void SetPhase(const std::string& phase) = 0;

  // Words between ranks outside of any collective, for what may take any time. Each key is posted
  // once, or with the same value each time. Await waits for that of rank `from`, as
  // long as all ranks live and that one has not done all its part.
  virtual void Post(const std::string& key, const std::string& value) = 0;
  virtual std::string Await(const std::string& key, int from) = 0;
  // What is posted there, or comes within `time`; nullopt: nothing. Both this and Post
  // throw where rank 0, which keeps the words, has ended or hangs.
  virtual std::optional<std::string> Find(const std::string& key,
                                          std::chrono::milliseconds time) = 0;

 protected:
  ProcessGroup(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

struct ProcessGroupOptions {
  // How long ranks may be late: to join, and to take part in a call.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // "gloo": TCP, for tensors in the host's memory. "nccl": one GPU for each process; the group is
  // an NcclGroup (nccl_group.h).
  std::string backend = "gloo";
};

// Waits until all ranks of the environment have joined. Rank 0 listens at the environment's master
// address. Throws on every rank, with the same words, if some don't come (which), one comes twice
// or they don't agree on how many they are; Unavailable, as the group's calls do, if one that had
// joined ends before all have; InvalidArgument for another backend, FailedPrecondition for one that
// this program or machine doesn't have.
std::shared_ptr<ProcessGroup> JoinProcessGroup(const ProcessEnvironment& environment,
                                               const ProcessGroupOptions& options = {});

}  // namespace lathe
