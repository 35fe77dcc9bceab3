// The device with its stream, its memory, and its copies from and to the host.
#include "lathe/core/cuda/runtime/device.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/cuda/runtime/build.h"
#include "lathe/core/cuda/runtime/staging.h"
#include "lathe/core/device_backend.h"

namespace lathe::cuda {

void CheckCuda(const char* call, cudaError_t result) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next call would report again
  throw Error(absl::StatusCode::kInternal,
              absl::StrCat("[cuda] ", call, ": ", cudaGetErrorString(result)));
}

namespace {

// The index of the device that this process uses, or -1 before one is chosen.
std::atomic<int> the_device = -1;

}  // namespace

void BindThread() {
  thread_local bool bound = false;
  if (bound || the_device < 0) return;
  CheckCuda("cudaSetDevice", cudaSetDevice(the_device));
  bound = true;
}

namespace {

// The total size of the segments in all PrivateMemoryPool objects, in bytes.
std::atomic<int64_t> reserved_for_recordings = 0;

class CudaMemory : public SegmentSource {
 public:
  void* Allocate(int64_t bytes) override {
    BindThread();
    void* segment = nullptr;
    const cudaError_t result = cudaMalloc(&segment, static_cast<size_t>(bytes));
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    CheckCuda("cudaMalloc", result);
    OnNewSegment(segment, bytes);
    return segment;
  }
  void Release(void* segment) override {
    cudaStreamSynchronize(Stream());
    cudaFree(segment);
  }
  // Release waits for the stream, which is impossible while work is recorded.
  bool MayRelease() override { return !IsCapturing(); }
  Room Memory() override {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return {static_cast<int64_t>(free), static_cast<int64_t>(total), reserved_for_recordings};
  }
};

// Segments of device memory for a single purpose. If the device is full, the shared pool gives its
// free segments back. This memory keeps its own free segments, since work that was recorded earlier
// uses them.
class PrivateMemoryPool : public DeviceMemoryPool, public SegmentSource {
 public:
  ~PrivateMemoryPool() override { Trim(); }
  Pool& pool() { return pool_; }
  void Trim() override { pool_.ReleaseFreeSegments(); }

  void* Allocate(int64_t bytes) override {
    void* segment = memory_.Allocate(bytes);
    if (segment == nullptr && !IsCapturing()) {
      DevicePool().ReleaseFreeSegments();
      segment = memory_.Allocate(bytes);
    }
    if (segment == nullptr) return nullptr;
    sizes_[segment] = bytes;
    reserved_for_recordings += bytes;
    return segment;
  }
  void Release(void* segment) override {
    reserved_for_recordings -= sizes_.extract(segment).mapped();
    memory_.Release(segment);
  }
  bool MayRelease() override { return false; }
  Room Memory() override { return memory_.Memory(); }

 private:
  CudaMemory memory_;
  std::map<void*, int64_t> sizes_;  // of segments; guarded by the pool
  Pool pool_{*this};
};

// The memory that this thread's storages come from; null means DevicePool().
thread_local std::shared_ptr<DeviceMemoryPool> used_memory;
thread_local bool recording = false;  // true while this thread records

class DeviceStorage : public Storage {
 public:
  explicit DeviceStorage(int64_t bytes, std::shared_ptr<DeviceMemoryPool> memory = used_memory)
      : Storage(PoolOf(memory).Allocate(bytes + GuardBytes()), bytes),
        memory_(std::move(memory)),
        recorded_(OnNewStorage(data_, bytes, memory_ != nullptr)) {}
  ~DeviceStorage() override {
    OnFreedStorage(data_, bytes_, recorded_);
    PoolOf(memory_).Free(data_);
  }
  const std::shared_ptr<DeviceMemoryPool>& memory() const { return memory_; }

 private:
  static Pool& PoolOf(const std::shared_ptr<DeviceMemoryPool>& memory) {
    return memory == nullptr ? DevicePool() : static_cast<PrivateMemoryPool&>(*memory).pool();
  }
  std::shared_ptr<DeviceMemoryPool> memory_;
  const bool recorded_;  // what OnNewStorage has returned
};

// A thread's workspaces. Each is larger than the one before it, and the last is in use.
using Workspaces = std::vector<std::shared_ptr<DeviceStorage>>;
// The workspaces that Workspace() has given to this thread.
thread_local Workspaces given_workspaces;

class Graph : public RecordedWork {
 public:
  Graph(cudaGraph_t graph, Workspaces used) : used_(std::move(used)) {
    const cudaError_t result = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda("cudaGraphInstantiate", result);
  }
  // Waits for queued runs, because the graph's memory may be freed after this.
  ~Graph() override {
    cudaStreamSynchronize(Stream());
    cudaGraphExecDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void Launch() override { CheckCuda("cudaGraphLaunch", cudaGraphLaunch(graph_, Stream())); }

 private:
  cudaGraphExec_t graph_ = nullptr;
  const Workspaces used_;  // kept here, because the recording thread may have ended
};

// A CUDA stream as a queue of copies.
class StreamQueue : public CopyQueue {
 public:
  explicit StreamQueue(cudaStream_t (*stream)()) : stream_(stream) {}
  void* AllocatePinned(int64_t bytes) override {
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault) == cudaSuccess) {
      return memory;
    }
    cudaGetLastError();
    return nullptr;
  }
  void Copy(void* to, const void* from, int64_t bytes, Direction direction) override {
    CheckCuda("cudaMemcpy",
              cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                              direction == Direction::kToDevice ? cudaMemcpyHostToDevice
                                                                : cudaMemcpyDeviceToHost,
                              stream_()));
  }
  Mark NewMark() override {
    cudaEvent_t event = nullptr;
    CheckCuda("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void Record(Mark mark) override {
    CheckCuda("cudaEventRecord", cudaEventRecord(static_cast<cudaEvent_t>(mark), stream_()));
  }
  void Wait(Mark mark) override {
    CheckCuda("cudaEventSynchronize", cudaEventSynchronize(static_cast<cudaEvent_t>(mark)));
  }
  void Synchronize() override {
    CheckCuda("cudaStreamSynchronize", cudaStreamSynchronize(stream_()));
  }
  void* AllocateOnDevice(int64_t bytes) override {
    void* memory = CudaMemory().Allocate(bytes);
    if (memory != nullptr) OnNewBuffer(memory, bytes);
    return memory;
  }
  void CopyOnDevice(void* to, const void* from, int64_t bytes) override {
    CheckCuda("cudaMemcpy", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                            cudaMemcpyDeviceToDevice, stream_()));
  }
  void WaitOnDevice(Mark mark) override {
    CheckCuda("cudaStreamWaitEvent",
              cudaStreamWaitEvent(stream_(), static_cast<cudaEvent_t>(mark), 0));
  }

 private:
  cudaStream_t (*const stream_)();
};

class Backend : public DeviceBackend {
 public:
  std::string DescribeBuild() override { return BuildName(); }
  int Count() override {
    Probe();
    return count_;
  }
  std::string UnavailableReason() override {
    Probe();
    return unavailable_reason_;
  }

  std::string Describe(int index) override {
    cudaDeviceProp properties;
    CheckCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index));
    const double gib = static_cast<double>(properties.totalGlobalMem) / (1 << 30);
    return absl::StrCat(properties.name, ", compute capability ", properties.major, ".",
                        properties.minor, ", ", absl::SixDigits(gib), " GiB");
  }

  std::shared_ptr<Storage> Allocate(int64_t bytes, int index, bool zeroed) override {
    Use(index);
    // Memory of the shared pool is reserved only until the tensor dies. Recorded work would use it
    // in later runs too, when others may have it.
    Check(!recording || used_memory != nullptr, "cuda",
          "recorded work can't create a tensor that outlives it");
    auto storage = std::make_shared<DeviceStorage>(bytes);
    if (zeroed && bytes > 0) {
      CheckCuda("cudaMemset",
                cudaMemsetAsync(storage->data(), 0, static_cast<size_t>(bytes), Stream()));
    }
    return storage;
  }
  MemoryUse Memory(int) override {
    const PoolStatistics s = DevicePool().Statistics();
    const int64_t others = reserved_for_recordings.load();
    return {s.allocated + others, s.peak_allocated + others};
  }
  void ResetPeakMemory(int) override { DevicePool().ResetPeaks(); }

  void CopyToDevice(void* to, const void* from, int64_t bytes) override {
    CheckNotRecorded();
    upload_.Copy(to, from, bytes);
  }
  void PrefetchToDevice(void* to, const void* from, int64_t bytes) override {
    CheckNotRecorded();
    if (!ahead_.Copy(to, from, bytes)) upload_.Copy(to, from, bytes);
  }
  void CopyOnDevice(void* to, const void* from, int64_t bytes) override {
    queue_.CopyOnDevice(to, from, bytes);
  }
  void CopyToHost(void* to, const void* from, int64_t bytes) override {
    CheckNotRecorded();
    download_.Copy(to, from, bytes);
  }
  void Synchronize() override { queue_.Synchronize(); }
  void* WorkQueue() override { return Stream(); }

  std::shared_ptr<DeviceMemoryPool> NewMemoryPool() override {
    return std::make_shared<PrivateMemoryPool>();
  }
  std::shared_ptr<DeviceMemoryPool> UseMemoryPool(
      std::shared_ptr<DeviceMemoryPool> memory) override {
    return std::exchange(used_memory, std::move(memory));
  }
  std::shared_ptr<DeviceMemoryPool> MemoryPoolOf(const Storage& storage) const override {
    return static_cast<const DeviceStorage&>(storage).memory();
  }
  std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) override {
    Check(!IsCapturing(), "cuda", "work is being recorded already");
    // Relaxed mode allows work to allocate memory while it is recorded.
    CheckCuda("cudaStreamBeginCapture",
              cudaStreamBeginCapture(Stream(), cudaStreamCaptureModeRelaxed));
    cudaGraph_t graph = nullptr;
    try {
      const AllocationTag allocation_tag = AllocationTag::Recording();
      recording = true;
      work();
      recording = false;
    } catch (...) {
      recording = false;
      cudaStreamEndCapture(Stream(), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    CheckCuda("cudaStreamEndCapture", cudaStreamEndCapture(Stream(), &graph));
    return std::make_unique<Graph>(graph, given_workspaces);
  }

 private:
  // The pinned memory would hold other values when the work is repeated.
  static void CheckNotRecorded() {
    Check(!IsCapturing(), "cuda", "values can't be copied to or from the host in recorded work");
  }

  void Probe() {
    std::call_once(probed_, [this] {
      const cudaError_t result = cudaGetDeviceCount(&count_);
      if (result == cudaSuccess && count_ > 0) return;
      cudaGetLastError();
      count_ = 0;
      unavailable_reason_ =
          result == cudaErrorInsufficientDriver
              ? "no NVIDIA driver is installed, or it is too old for this program's CUDA"
              : cudaGetErrorString(result == cudaSuccess ? cudaErrorNoDevice : result);
    });
  }

  void Use(int index) {
    int used = -1;
    if (!the_device.compare_exchange_strong(used, index) && used != index) {
      throw InvalidArgument(absl::StrCat("[device] this process uses cuda:", used,
                                         " already and can't use cuda:", index, ", too"),
                            "start one process for each GPU");
    }
    BindThread();
  }

  static constexpr int64_t kUploadBytes = int64_t{8} << 20, kDownloadBytes = int64_t{4} << 20;
  static constexpr int64_t kAheadBytes = int64_t{1} << 20;  // enough for 65,000 tokens
  StreamQueue queue_{Stream}, copy_queue_{CopyStream};
  UploadRing upload_{queue_, kUploadBytes};
  UploadPrefetcher ahead_{queue_, copy_queue_, kAheadBytes};
  DownloadBuffer download_{queue_, kDownloadBytes};
  std::once_flag probed_;
  int count_ = 0;
  std::string unavailable_reason_;
};

[[maybe_unused]] const bool registered = RegisterDeviceBackend(new Backend);

cudaStream_t NewStream() {
  cudaStream_t made = nullptr;
  CheckCuda("cudaStreamCreate", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

}  // namespace

cudaStream_t Stream() {
  BindThread();
  static const cudaStream_t stream = NewStream();
  return stream;
}

cudaStream_t CopyStream() {
  BindThread();
  static const cudaStream_t stream = NewStream();
  return stream;
}

bool IsCapturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CheckCuda("cudaStreamIsCapturing", cudaStreamIsCapturing(Stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

// Never destroyed, because tensors may outlive static variables.
Pool& DevicePool() {
  static Pool* pool = new Pool(*new CudaMemory);
  return *pool;
}

void* Workspace(int64_t bytes) {
  Workspaces& given = given_workspaces;
  if (given.empty() || given.back()->bytes() < bytes) {
    const AllocationTag allocation_tag = AllocationTag::Buffer("scratch memory");
    const int64_t larger = given.empty() ? bytes : std::max(bytes, 2 * given.back()->bytes());
    given.push_back(std::make_shared<DeviceStorage>(larger, /*memory=*/nullptr));
  }
  OnGivenWorkspace(given.back()->data(), given.back()->bytes(), bytes);
  return given.back()->data();
}

}  // namespace lathe::cuda
