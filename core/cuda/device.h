// CUDA's device as Lathe uses it, for the sources in core/cuda/.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lathe::cuda {

// The stream that all work of this process goes to.
cudaStream_t Stream();
// Throws Error("[cuda] <call>: <what CUDA says>").
void CheckCuda(const char* call, cudaError_t result);
// Lets a kernel have more than 48 KiB of dynamic shared memory.
void AllowSharedMemory(const char* name, const void* kernel, size_t bytes);

// Scratch memory on the device that work queued later may reuse: valid for what is queued before
// the next call. At least `bytes`, 256-byte aligned.
void* Workspace(int64_t bytes);

}  // namespace lathe::cuda
