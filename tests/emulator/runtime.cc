// The emulated runtime: one device with memory that only kernels and copies may touch.
#include <cuda_runtime.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {
namespace {

constexpr size_t kReserved = size_t{64} << 30;
constexpr size_t kAlignment = 4096, kGap = 4096;  // a gap after each block, for what goes astray

struct Memory {
  char* base = nullptr;
  size_t top = 0;  // of what was ever handed out
  size_t size = size_t{16} << 30, used = 0;
  int open = 0;                // DeviceAccess that live
  std::recursive_mutex mutex;  // held by the thread whose they are
  struct Part {
    size_t begin, bytes;
  };
  std::map<char*, Part> blocks;
  std::multimap<size_t, size_t> free;  // begin by size
};

Memory& TheMemory() {
  static Memory memory;
  [[maybe_unused]] static const bool mapped = [] {
    void* base =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      std::perror("emulator: mmap");
      std::abort();
    }
    memory.base = static_cast<char*>(base);
    if (const char* set = std::getenv("LATHE_EMULATOR_MEMORY_MIB")) {
      memory.size = static_cast<size_t>(std::atoll(set)) << 20;
    }
    return true;
  }();
  return memory;
}

void Protect(int how) {
  Memory& m = TheMemory();
  if (m.top > 0 && mprotect(m.base, m.top, how) != 0) {
    std::perror("emulator: mprotect");
    std::abort();
  }
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
  if (recorded) return Enqueue([=] { MemoryIsUsed(memory, bytes); });
  constexpr size_t kStep = 512;  // of pools' blocks
  const size_t end = (std::max<size_t>(bytes, 1) + kStep - 1) / kStep * kStep;
  ASAN_UNPOISON_MEMORY_REGION(memory, end);
  const DeviceAccess access;
  std::memset(memory, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(memory) + bytes, end - bytes);
}

void MemoryIsFree(void* memory, size_t bytes, bool recorded) {
  if (recorded) return Enqueue([=] { MemoryIsFree(memory, bytes); });
  ASAN_POISON_MEMORY_REGION(memory, bytes);
}

void SetMemorySize(int64_t bytes) { TheMemory().size = static_cast<size_t>(bytes); }

}  // namespace lathe::emulator

using lathe::emulator::DeviceAccess;
using lathe::emulator::TheMemory;

struct CUstream_st {};
struct CUevent_st {};
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};

namespace lathe::emulator {
namespace {
std::unique_ptr<CUgraph_st> recording;  // null: work is done at once
int64_t graph_launches = 0;
std::atomic<int64_t> waits = 0;
}  // namespace

void Enqueue(std::function<void()> work) {
  if (recording == nullptr) return work();
  recording->work.push_back(std::move(work));
}
int64_t NumGraphLaunches() { return graph_launches; }
int64_t NumWaits() { return waits; }

}  // namespace lathe::emulator

using lathe::emulator::recording;
using lathe::emulator::waits;

namespace {
thread_local cudaError_t last_error = cudaSuccess;
cudaError_t Fail(cudaError_t error) { return last_error = error; }
}  // namespace

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
  }
  return "unknown error";
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  return index == 0 ? cudaSuccess : Fail(cudaErrorInvalidValue);
}
cudaError_t cudaGetDevice(int* index) {
  *index = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated device");
  properties->totalGlobalMem = TheMemory().size;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = 227 << 10;
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
    mprotect(block, size + lathe::emulator::kGap, PROT_READ | PROT_WRITE);
    ASAN_UNPOISON_MEMORY_REGION(block, size);
    std::memset(block, 0xff, size);  // NaN to whoever reads before writing
  }
  if (m.open == 0) mprotect(block, size + lathe::emulator::kGap, PROT_NONE);
  *memory = block;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  auto& m = TheMemory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.blocks.find(static_cast<char*>(memory));
  if (found == m.blocks.end()) return Fail(cudaErrorInvalidValue);
  madvise(memory, found->second.bytes, MADV_DONTNEED);
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
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (recording != nullptr) return Fail(cudaErrorStreamCaptureUnsupported);
  ++waits;
  const DeviceAccess access;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
// What the host's memory holds when a graph is launched would count: nobody here means that.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  if (recording != nullptr && kind != cudaMemcpyDeviceToDevice) {
    return Fail(cudaErrorStreamCaptureUnsupported);
  }
  lathe::emulator::Enqueue([=] {
    const DeviceAccess access;
    std::memmove(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  lathe::emulator::Enqueue([=] {
    const DeviceAccess access;
    std::memset(to, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (recording != nullptr) return Fail(cudaErrorStreamCaptureUnsupported);
  ++waits;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = recording == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (recording != nullptr) return Fail(cudaErrorStreamCaptureUnsupported);
  recording = std::make_unique<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = recording.release();
  return *graph == nullptr ? Fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraph_st(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  if (recording != nullptr) return Fail(cudaErrorStreamCaptureUnsupported);
  ++lathe::emulator::graph_launches;
  for (const auto& work : graph->work) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  ++waits;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
