// NCCL's collectives among processes that each have a GPU of their own.
//
// A program gets them if it links //distributed/groups/nccl:nccl_group beside //core:cuda.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// The calls of ProcessGroup take host memory, copy it to the device and back, and wait for that.
// The calls below take memory of this rank's device and don't wait:
//
//   group->AllReduceDevice(gradients, n, ReduceOp::kSum, stream);  // after what is on the stream
//   ...                                                            // launch more on it
//   group->WaitFor(stream);                                        // once a step: did all go well?
//
// Each call makes the group's device the current one of the calling thread.
class NcclGroup : public ProcessGroup {
 public:
  // Returns the CUDA number of this rank's device.
  virtual int device() const = 0;

  // The calls below enqueue the collective on `stream`, a cudaStream_t of this rank's device, and
  // return. The first of them may wait until all ranks have come to it. WaitFor tells whether they
  // have worked.
  virtual void AllReduceDevice(float* data, size_t n, ReduceOp op, void* stream) = 0;
  virtual void AllReduceDevice(BFloat16* data, size_t n, ReduceOp op, void* stream) = 0;

  // Returns the group's own stream, a cudaStream_t, for collectives beside the device's other work.
  virtual void* stream() const = 0;
  // All work that is put on `later` from now on begins after all that is on `earlier` now.
  virtual void Order(void* earlier, void* later) = 0;

  // Returns when all that is on the stream now is done. Throws as collectives do if a rank is late
  // for longer than the timeout. Use only this call to wait for a stream that may wait for other
  // ranks: CUDA's own calls wait for a lost rank without end.
  virtual void WaitFor(void* stream) = 0;

  // From now on waits also end when that group's CheckPeers throws. A rank that hangs is then
  // missed from its last sign of life on, not from when this rank waits for it.
  virtual void WatchPeersWith(std::weak_ptr<ProcessGroup> group) = 0;

  // Ends what NCCL does on the device. Call it when a rank is known to be lost: NCCL would wait for
  // it until the timeout. The group can't be used any more.
  virtual void Stop() = 0;

 protected:
  using ProcessGroup::ProcessGroup;
};

// Describes the GPU that a rank of a job uses. The ranks compare these before they call NCCL, which
// would say less or hang.
struct RankDevice {
  std::string host{};     // the rank's host name
  std::string problem{};  // why the rank has no device: "no CUDA device: ..."; "" if it has one
  std::string hint{};     // what the user can do about it
  std::string uuid{};     // identifies the device among all devices in the world
  std::string bus_id{};   // "0000:3b:00.0"
  int visible = 0;        // the number of devices that the rank could choose from
};

// Convert a description to text for other ranks, and back. Parse(Serialize(d)) == d, except that
// line feeds become blanks. Parse throws InvalidArgument.
std::string Serialize(const RankDevice& device);
RankDevice ParseRankDevice(const std::string& text);

// Throws FailedPrecondition, with the same words on every rank, unless each rank has a device of
// its own. devices[i] is that of rank i.
void CheckRankDevices(std::span<const RankDevice> devices);

// The functions of a program that links NCCL's groups.
struct NcclBackend {
  // Describes the GPU that this process would use: number `local_rank`, modulo the number of GPUs
  // that it sees. The modulo is for schedulers that show each process its own GPU as number 0. If
  // something is missing, the result's `problem` says what.
  RankDevice (*describe)(int local_rank);
  // Connects all ranks of a job, each with the device that `describe` tells. `server` is rank 0's.
  // Throws FailedPrecondition, on all ranks and with the same words, if one has no CUDA device,
  // lacks NCCL or shares its device. Throws Unavailable as collectives do.
  std::shared_ptr<NcclGroup> (*make)(int rank, int size, int local_rank,
                                     std::shared_ptr<StoreServer> server,
                                     std::shared_ptr<Store> store,
                                     std::chrono::milliseconds timeout);
};
// The backend calls it before main. Returns true.
bool RegisterNcclBackend(const NcclBackend& backend);

// Throws FailedPrecondition with `built without CUDA` if this program is.
const NcclBackend& RequireNccl();
// Calls NcclBackend::describe. If the program was built without CUDA, the result's `problem` says
// so.
RankDevice DescribeRankDevice(int local_rank);

}  // namespace lathe
