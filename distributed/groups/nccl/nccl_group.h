// NCCL's collectives among processes that each have a GPU of their own.
//
// Programs that are to have them link :nccl_group beside //core:cuda.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lathe/distributed/groups/nccl/nccl_devices.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// The calls of ProcessGroup take memory of the host, carry it to the device and back and wait for
// it. Those below take memory of this rank's device and don't:
//
//   group->AllReduceDevice(gradients, n, ReduceOp::kSum, stream);  // after what is on the stream
//   ...                                                            // launch more on it
//   group->WaitFor(stream);                                        // once a step: did all go well?
//
// Each call makes the group's device the current one of the calling thread.
class NcclGroup : public ProcessGroup {
 public:
  // CUDA's number of this rank's device.
  virtual int device() const = 0;

  // Enqueue on `stream`, a cudaStream_t of this rank's device, and return; the first of them may
  // wait until all ranks have come to it. Whether it has worked is known when WaitFor returns.
  virtual void AllReduceDevice(float* data, size_t n, ReduceOp op, void* stream) = 0;
  virtual void AllReduceDevice(double* data, size_t n, ReduceOp op, void* stream) = 0;
  virtual void AllReduceDevice(int64_t* data, size_t n, ReduceOp op, void* stream) = 0;
  virtual void AllReduceDevice(BFloat16* data, size_t n, ReduceOp op, void* stream) = 0;
  virtual void BroadcastDevice(void* data, size_t bytes, int root, void* stream) = 0;

  // The group's own stream, a cudaStream_t, for what runs beside the rest of the device's work.
  virtual void* stream() const = 0;
  // What is put on `later` from now on begins after all that is on `earlier` by now.
  virtual void Order(void* earlier, void* later) = 0;

  // Returns when all that is on the stream by now is done. Throws as collectives do if a rank is
  // late for longer than the timeout; a stream may only wait for other ranks by this call, as
  // CUDA's own calls wait for a dead rank without end.
  virtual void WaitFor(void* stream) = 0;

  // From now on waits end, too, when that group's CheckPeers throws: a rank that hangs is missed
  // from its last sign of life on, not from when this one waits for it.
  virtual void WatchWith(std::weak_ptr<ProcessGroup> group) = 0;

  // Ends what NCCL does on the device, once a rank is known to be lost: it would wait for it for as
  // long as the timeout lasts. The group can be used no more.
  virtual void Stop() = 0;

 protected:
  using ProcessGroup::ProcessGroup;
};

// What a program that links NCCL's groups has of them.
struct NcclBackend {
  // The GPU that this process would use: number `local_rank`, modulo how many it sees, for
  // schedulers that show each process its own as number 0. What it lacks is the result's problem.
  RankDevice (*describe)(int local_rank);
  std::shared_ptr<NcclGroup> (*make)(int rank, int size, int local_rank,
                                     std::shared_ptr<StoreServer> server,
                                     std::shared_ptr<Store> store,
                                     std::chrono::milliseconds timeout);
};
// Called before main by the backend. Returns true.
bool RegisterNcclBackend(const NcclBackend& backend);

// Throws FailedPrecondition with `built without CUDA` if this program is.
const NcclBackend& RequireNccl();
// As NcclBackend::describe; the problem may be that the program was built without CUDA.
RankDevice DescribeRankDevice(int local_rank);

// Connects all ranks of a job, each with the device that DescribeRankDevice tells. `server` is rank
// 0's. Throws FailedPrecondition, on all ranks and with the same words, if one has no CUDA device,
// lacks NCCL or shares its device with another; Unavailable as collectives do.
std::shared_ptr<NcclGroup> MakeNcclGroup(int rank, int size, int local_rank,
                                         std::shared_ptr<StoreServer> server,
                                         std::shared_ptr<Store> store,
                                         std::chrono::milliseconds timeout);

}  // namespace lathe
