// What differs between the two builds of the backend. One of two files is linked: gpu_build.cc for
// GPUs, or tests/emulator/build.cc for the emulated device, which checks how its memory is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lathe::cuda {

// Returns what DeviceBackend::DescribeBuild returns, such as "CUDA 12.4, kernels for sm_90".
std::string BuildName();

// Returns how many bytes each storage takes beyond its own. Nothing may touch them.
int64_t GuardBytes();
// Tell the build of memory as it comes and goes. The build for GPUs ignores it.
void OnNewSegment(void* segment, int64_t bytes);  // no storage uses it yet
void OnNewBuffer(void* memory, int64_t bytes);    // it is in use until the program ends
// Returns true if the storage comes into use in each run of work that is being recorded.
// `own_memory`: the storage doesn't lie in the shared pool.
bool OnNewStorage(void* data, int64_t bytes, bool own_memory);
// `recorded`: what OnNewStorage has returned.
void OnFreedStorage(void* data, int64_t bytes, bool recorded);
// A workspace of `size` bytes counts as newly allocated, with only `bytes` of them in use.
void OnGivenWorkspace(void* data, int64_t size, int64_t bytes);

// Raises the limit of dynamic shared memory for a kernel's blocks to at least `bytes`, which the
// device has.
void RaiseSharedMemoryLimit(const char* name, const void* kernel, size_t bytes);

}  // namespace lathe::cuda
