// The backend's build for the emulated device.
#include "lathe/core/cuda/runtime/build.h"

#include <cuda_runtime.h>

#include "lathe/core/cuda/runtime/device.h"

namespace lathe::cuda {

std::string BuildName() { return "emulated CUDA"; }

int64_t GuardBytes() { return emulator::kGuardBytes; }

void OnNewSegment(void* segment, int64_t bytes) {
  emulator::MemoryIsFree(segment, static_cast<size_t>(bytes));
}

void OnNewBuffer(void* memory, int64_t bytes) {
  emulator::MemoryIsUsed(memory, static_cast<size_t>(bytes));
}

bool OnNewStorage(void* data, int64_t bytes, bool own_memory) {
  const bool recorded = own_memory && IsCapturing();
  emulator::MemoryIsUsed(data, static_cast<size_t>(bytes), recorded);
  return recorded;
}

void OnFreedStorage(void* data, int64_t bytes, bool recorded) {
  emulator::MemoryIsFree(data, static_cast<size_t>(bytes), recorded && IsCapturing());
}

void OnGivenWorkspace(void* data, int64_t size, int64_t bytes) {
  emulator::MemoryIsFree(data, static_cast<size_t>(size), IsCapturing());
  emulator::MemoryIsUsed(data, static_cast<size_t>(bytes), IsCapturing());
}

// The emulator allows each launch all of the shared memory, so there is no limit to raise first.
void RaiseSharedMemoryLimit(const char*, const void*, size_t) {}

}  // namespace lathe::cuda
