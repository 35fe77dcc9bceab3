// Owning pointers to CUDA's streams, events and memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "lathe/distributed/liveness/peer_watch.h"

namespace lathe {

// Throws OwnFault, as in "cudaMalloc: out of memory", if the call has failed.
inline void CheckCuda(const char* call, cudaError_t result) {
  if (result != cudaSuccess) throw OwnFault(std::string(call) + ": " + cudaGetErrorString(result));
}

template <auto free>
struct CudaDeleter {
  template <typename T>
  void operator()(T* handle) const {
    free(handle);
  }
};
using CudaStream = std::unique_ptr<CUstream_st, CudaDeleter<cudaStreamDestroy>>;
using CudaEvent = std::unique_ptr<CUevent_st, CudaDeleter<cudaEventDestroy>>;
using DeviceMemory = std::unique_ptr<std::byte, CudaDeleter<cudaFree>>;
using PinnedMemory = std::unique_ptr<std::byte, CudaDeleter<cudaFreeHost>>;

// The functions below create their object on the current device.
inline CudaStream MakeCudaStream() {
  cudaStream_t stream = nullptr;
  CheckCuda("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return CudaStream(stream);
}

// Makes an event for polling. It records no time.
inline CudaEvent MakeCudaEvent() {
  cudaEvent_t event = nullptr;
  CheckCuda("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return CudaEvent(event);
}

inline DeviceMemory MakeDeviceMemory(size_t bytes) {
  void* memory = nullptr;
  CheckCuda("cudaMalloc", cudaMalloc(&memory, bytes));
  return DeviceMemory(static_cast<std::byte*>(memory));
}

inline PinnedMemory MakePinnedMemory(size_t bytes) {
  void* memory = nullptr;
  CheckCuda("cudaHostAlloc", cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return PinnedMemory(static_cast<std::byte*>(memory));
}

}  // namespace lathe
