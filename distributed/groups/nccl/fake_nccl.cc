#include "lathe/distributed/groups/nccl/fake_nccl.h"

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_library.h"

struct ncclComm {
  int size, rank, polls_left;
};

namespace lathe {

FakeNccl& Fake() {
  static FakeNccl fake;
  return fake;
}

namespace {

ncclResult_t Start(ncclComm_t comm) {
  ++Fake().collectives;
  comm->polls_left = Fake().polls_to_settle;
  return comm->polls_left > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t Init(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = new ncclComm{size, rank, Fake().polls_to_settle};
  if (config->blocking != 0 || std::strcmp(id.internal, "an id") != 0) return ncclInvalidArgument;
  return ncclInProgress;
}

ncclResult_t AsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->polls_left-- > 0   ? ncclInProgress
           : Fake().collectives > 0 ? Fake().error
                                    : ncclSuccess;
  return ncclSuccess;
}

template <typename T>
void Multiply(const void* from, void* to, size_t n, int by) {
  for (size_t i = 0; i < n; ++i) {
    static_cast<T*>(to)[i] = static_cast<T>(static_cast<const T*>(from)[i] * static_cast<T>(by));
  }
}

ncclResult_t AllReduce(const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                       ncclComm_t comm, cudaStream_t) {
  const int by = op == ncclSum ? comm->size : 1;
  if (type == ncclFloat32) Multiply<float>(from, to, n, by);
  if (type == ncclFloat64) Multiply<double>(from, to, n, by);
  if (type == ncclInt64) Multiply<int64_t>(from, to, n, by);
  if (type == ncclBfloat16) Multiply<BFloat16>(from, to, n, by);
  return Start(comm);
}

ncclResult_t AllGather(const void* from, void* to, size_t n, ncclDataType_t, ncclComm_t comm,
                       cudaStream_t) {
  for (int rank = 0; rank < comm->size; ++rank) {
    void* const part = static_cast<char*>(to) + static_cast<size_t>(rank) * n;
    if (part != from) std::memcpy(part, from, n);
  }
  return Start(comm);
}

ncclResult_t Broadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t comm,
                       cudaStream_t) {
  return Start(comm);
}

// Every handle is a piece of memory, so that all kinds are counted alike.
template <typename Handle>
cudaError_t Make(Handle* handle, size_t bytes) {
  if (Fake().out_of_memory) return cudaErrorMemoryAllocation;
  ++Fake().live_handles;
  *handle = static_cast<Handle>(std::malloc(bytes));
  return cudaSuccess;
}
cudaError_t Drop(void* handle) {
  --Fake().live_handles;
  std::free(handle);
  return cudaSuccess;
}

}  // namespace

const NcclLibrary& Nccl() {
  if (Fake().library_is_missing) {
    throw Error(absl::StatusCode::kFailedPrecondition, "NCCL can't be used: missing", "install it");
  }
  static const NcclLibrary nccl = [] {
    NcclLibrary table{};
    table.GetErrorString = [](ncclResult_t result) {
      return result == ncclInternalError ? "internal error" : "some error";
    };
    table.GetLastError = [](ncclComm_t) { return ""; };
    table.GetUniqueId = [](ncclUniqueId* id) {
      *id = {"an id"};
      return ncclSuccess;
    };
    table.CommInitRankConfig = Init;
    table.CommGetAsyncError = AsyncError;
    table.CommFinalize = [](ncclComm_t comm) {
      ++Fake().finalized;
      comm->polls_left = Fake().polls_to_settle;
      return ncclInProgress;
    };
    table.CommDestroy = [](ncclComm_t comm) {
      ++Fake().destroyed;
      delete comm;
      return ncclSuccess;
    };
    table.CommAbort = [](ncclComm_t comm) {
      ++Fake().aborted;
      if (Fake().abort_hangs) std::this_thread::sleep_for(std::chrono::hours(1));
      delete comm;
      return ncclSuccess;
    };
    table.AllReduce = AllReduce;
    table.AllGather = AllGather;
    table.Broadcast = Broadcast;
    return table;
  }();
  return nccl;
}

}  // namespace lathe

using lathe::Fake;

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = Fake().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device < Fake().devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(0xa0 + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", device);
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "another error";
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return lathe::Make(reinterpret_cast<void**>(stream), 1);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return lathe::Drop(stream); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return lathe::Make(reinterpret_cast<void**>(event), 1);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return lathe::Drop(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) {
  const bool hangs = Fake().collectives > 0 && (Fake().collectives_hang || Fake().error != 0);
  return Fake().last_error = hangs ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return std::exchange(Fake().last_error, cudaSuccess); }
cudaError_t cudaMalloc(void** memory, size_t bytes) { return lathe::Make(memory, bytes); }
cudaError_t cudaFree(void* memory) { return lathe::Drop(memory); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return lathe::Make(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return lathe::Drop(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
