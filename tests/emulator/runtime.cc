// The emulated runtime: its devices, and memory that only kernels and copies may touch.
#include <cuda_runtime.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {
namespace {

constexpr size_t kReserved = size_t{64} << 30;
constexpr size_t kAlignment = 4096, kGap = 4096;  // a gap around each block catches stray accesses
constexpr size_t kHugePage = 2 << 20;

struct Memory {
  char* base = nullptr;
  size_t top = kGap;  // the end of what was ever handed out
  size_t size = size_t{16} << 30, used = 0;
  int open = 0;                // the number of living DeviceAccess objects
  std::recursive_mutex mutex;  // held by the thread that has such objects
  struct Part {
    size_t begin, bytes;
  };
  std::map<char*, Part> blocks;
  std::multimap<size_t, size_t> free;  // size to begin
};

Memory& TheMemory() {
  static Memory memory;
  [[maybe_unused]] static const bool mapped = [] {
    void* base = mmap(nullptr, kReserved + kHugePage, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      std::perror("emulator: mmap");
      std::abort();
    }
    // Each kernel's launch changes the protection of all pages, so there should be few.
    memory.base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(base) + kHugePage - 1) /
                                          kHugePage * kHugePage);
    madvise(memory.base, kReserved, MADV_HUGEPAGE);
    ASAN_POISON_MEMORY_REGION(memory.base, kGap);
    if (const char* set = std::getenv("LATHE_EMULATOR_MEMORY_MIB")) {
      memory.size = static_cast<size_t>(std::atoll(set)) << 20;
    }
    return true;
  }();
  return memory;
}

void Protect(int how) {
  Memory& m = TheMemory();
  const size_t bytes = (m.top + kHugePage - 1) / kHugePage * kHugePage;
  if (mprotect(m.base, bytes, how) != 0) {
    std::perror("emulator: mprotect");
    std::abort();
  }
}

// Gives back the huge pages that lie in a block. A part of one would make it many pages again.
void GiveBack(const Memory::Part& part) {
  const size_t begin = (part.begin + kHugePage - 1) / kHugePage * kHugePage;
  const size_t end = (part.begin + part.bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(TheMemory().base + begin, end - begin, MADV_DONTNEED);
}

}  // namespace

DeviceAccess::DeviceAccess() {
  TheMemory().mutex.lock();
  if (TheMemory().open++ == 0) Protect(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  if (--TheMemory().open == 0) Protect(PROT_NONE);
  TheMemory().mutex.unlock();
}

void MemoryIsUsed(void* memory, size_t bytes, bool recorded) {
  if (recorded) return DoOrRecord([=] { MemoryIsUsed(memory, bytes); });
  ASAN_POISON_MEMORY_REGION(memory, bytes + kGuardBytes);
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  const DeviceAccess access;
  std::memset(memory, 0xff, bytes);
}

void MemoryIsFree(void* memory, size_t bytes, bool recorded) {
  if (recorded) return DoOrRecord([=] { MemoryIsFree(memory, bytes); });
  ASAN_POISON_MEMORY_REGION(memory, bytes);
}

size_t SharedMemorySize() {
  const char* const set = std::getenv("LATHE_EMULATOR_SHARED_KIB");
  return (set == nullptr ? size_t{227} : static_cast<size_t>(std::atoll(set))) << 10;
}

void SetMemorySize(int64_t bytes) { TheMemory().size = static_cast<size_t>(bytes); }

}  // namespace lathe::emulator

using lathe::emulator::DeviceAccess;
using lathe::emulator::TheMemory;

namespace {

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t Fail(cudaError_t error) { return lathe::emulator::Fail(error); }

int NumDevices() {
  const char* const set = std::getenv("LATHE_EMULATOR_DEVICES");
  return set == nullptr ? 1 : std::atoi(set);
}

}  // namespace

cudaError_t lathe::emulator::Fail(cudaError_t error) { return last_error = error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
  }
  return "unknown error";
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = NumDevices();
  return *count > 0 ? cudaSuccess : Fail(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int index) {
  return index < NumDevices() ? cudaSuccess : Fail(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int index) {
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", index);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(index);
  std::strcpy(properties->name, "emulated device");
  properties->totalGlobalMem = TheMemory().size;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = lathe::emulator::SharedMemorySize();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return Fail(cudaErrorInvalidValue);
  *value = static_cast<int>(lathe::emulator::SharedMemorySize());
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = TheMemory().size;
  *free = *total - std::min(*total, TheMemory().used);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  auto& m = TheMemory();
  const std::lock_guard lock(m.mutex);
  const size_t size = (std::max<size_t>(bytes, 1) + lathe::emulator::kAlignment - 1) /
                      lathe::emulator::kAlignment * lathe::emulator::kAlignment;
  if (m.used + size > m.size) return Fail(cudaErrorMemoryAllocation);
  size_t begin = m.top;
  if (const auto found = m.free.lower_bound(size); found != m.free.end() && found->first == size) {
    begin = found->second;
    m.free.erase(found);
  } else {
    if (m.top + size + lathe::emulator::kGap > lathe::emulator::kReserved) {
      return Fail(cudaErrorMemoryAllocation);
    }
    m.top += size + lathe::emulator::kGap;
  }
  m.used += size;
  char* block = m.base + begin;
  m.blocks[block] = {begin, size};
  {
    const DeviceAccess access;
    lathe::emulator::Protect(PROT_READ | PROT_WRITE);  // the new block, too
    ASAN_UNPOISON_MEMORY_REGION(block, size);
    ASAN_POISON_MEMORY_REGION(block + size, lathe::emulator::kGap);
    std::memset(block, 0xff, size);  // reads as NaN until it is written
  }
  *memory = block;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  cudaDeviceSynchronize();  // as CUDA does
  auto& m = TheMemory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.blocks.find(static_cast<char*>(memory));
  if (found == m.blocks.end()) return Fail(cudaErrorInvalidValue);
  lathe::emulator::GiveBack(found->second);
  ASAN_POISON_MEMORY_REGION(memory, found->second.bytes);
  m.used -= found->second.bytes;
  m.free.emplace(found->second.bytes, found->second.begin);
  m.blocks.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *memory == nullptr ? Fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  cudaDeviceSynchronize();
  std::free(memory);
  return cudaSuccess;
}
