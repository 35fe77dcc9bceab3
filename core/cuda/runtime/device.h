// Lathe's use of a CUDA device: its stream and its memory, for the sources in core/cuda/.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lathe/core/cuda/runtime/pool.h"

namespace lathe::cuda {

// Makes the process's device current in this thread. CUDA remembers the current device for each
// thread.
void BindThread();
// Returns the stream that all work of this process goes to. Any thread may call this.
cudaStream_t Stream();
// Returns the stream for copies from the host that run ahead of that work.
cudaStream_t CopyStream();
// Returns true while the stream's work is recorded instead of done.
bool IsCapturing();
// Throws Error("[cuda] <call>: <CUDA's explanation>") unless `result` is success.
void CheckCuda(const char* call, cudaError_t result);
// Returns how much shared memory a kernel's block may have at most, in bytes.
size_t SharedMemoryPerBlock();
// Lets a kernel have more than 48 KiB of dynamic shared memory. Throws InvalidArgument if the
// device has less than `bytes`.
void AllowSharedMemory(const char* name, const void* kernel, size_t bytes);

// Returns the pool of device memory that tensors and scratch memory share.
Pool& DevicePool();

// Returns at least `bytes` of scratch memory on the device, 512-byte aligned. It is valid for the
// work that this thread queues before its next call; later work may overwrite it. The memory stays
// reserved until the thread ends. Work that the thread recorded keeps it reserved, too.
void* Workspace(int64_t bytes);

}  // namespace lathe::cuda
