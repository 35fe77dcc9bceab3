// CUDA's device as Lathe uses it, for the sources in core/cuda/.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lathe/core/cuda/pool.h"

namespace lathe::cuda {

// The stream that all work of this process goes to. Any thread may ask.
cudaStream_t Stream();
// The one that carries copies from the host ahead of that work.
cudaStream_t CopyStream();
// Whether the stream's work is recorded for later instead of being done.
bool IsCapturing();
// Throws Error("[cuda] <call>: <what CUDA says>").
void CheckCuda(const char* call, cudaError_t result);
// The most shared memory that a block of a kernel may ask for, in bytes.
size_t SharedMemoryPerBlock();
// Lets a kernel have more than 48 KiB of dynamic shared memory. Throws InvalidArgument if the
// device has less.
void AllowSharedMemory(const char* name, const void* kernel, size_t bytes);

// Memory of the device that tensors and scratch share.
Pool& DevicePool();

// Scratch memory on the device that work queued later may reuse: valid for what this thread queues
// before its next call. At least `bytes`, 512-byte aligned. What a thread was given stays reserved
// for it until it ends, and for the work that it recorded as long as that may be repeated.
void* Workspace(int64_t bytes);

}  // namespace lathe::cuda
