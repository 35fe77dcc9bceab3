// The device, its stream, its memory and copies from and to the host.
#include "lathe/core/cuda/device.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lathe/core/device_backend.h"

namespace lathe::cuda {

void CheckCuda(const char* call, cudaError_t result) {
  if (result == cudaSuccess) return;
  throw Error(absl::StatusCode::kInternal,
              absl::StrCat("[cuda] ", call, ": ", cudaGetErrorString(result)));
}

void AllowSharedMemory(const char* name, const void* kernel, size_t bytes) {
#ifdef LATHE_CUDA_EMULATED
  (void)name, (void)kernel, (void)bytes;
#else
  CheckCuda(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
#endif
}

namespace {

// The device that this process uses; -1: none was chosen yet.
std::atomic<int> the_device = -1;

// CUDA remembers the current device for each thread: makes it the process's in this one.
void BindThread() {
  thread_local bool bound = false;
  if (bound || the_device < 0) return;
  CheckCuda("cudaSetDevice", cudaSetDevice(the_device));
  bound = true;
}

class CudaMemory : public PoolDevice {
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
    return segment;
  }
  // cudaFree waits for the device.
  void Release(void* segment) override { cudaFree(segment); }
  Room Memory() override {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
};

class DeviceStorage : public Storage {
 public:
  explicit DeviceStorage(int64_t bytes) : Storage(DevicePool().Allocate(bytes), bytes) {}
  ~DeviceStorage() override { DevicePool().Free(data_); }
};

class Backend : public DeviceBackend {
 public:
  int Count() override {
    Probe();
    return count_;
  }
  std::string WhyNone() override {
    Probe();
    return why_none_;
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
    auto storage = std::make_shared<DeviceStorage>(bytes);
    if (zeroed && bytes > 0) {
      CheckCuda("cudaMemset",
                cudaMemsetAsync(storage->data(), 0, static_cast<size_t>(bytes), Stream()));
    }
    return storage;
  }
  MemoryUse Memory(int) override {
    const PoolStatistics s = DevicePool().Statistics();
    return {s.allocated, s.peak_allocated};
  }
  void ResetPeakMemory(int) override { DevicePool().ResetPeaks(); }

  void CopyToDevice(void* to, const void* from, int64_t bytes) override {
    Copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void CopyOnDevice(void* to, const void* from, int64_t bytes) override {
    Copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void CopyToHost(void* to, const void* from, int64_t bytes) override {
    Copy(to, from, bytes, cudaMemcpyDeviceToHost);
    Synchronize();
  }
  void Synchronize() override {
    CheckCuda("cudaStreamSynchronize", cudaStreamSynchronize(Stream()));
  }

 private:
  static void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    CheckCuda("cudaMemcpy", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, Stream()));
  }

  void Probe() {
    std::call_once(probed_, [this] {
      const cudaError_t result = cudaGetDeviceCount(&count_);
      if (result == cudaSuccess && count_ > 0) return;
      cudaGetLastError();
      count_ = 0;
      why_none_ = result == cudaErrorInsufficientDriver
                      ? "there is no NVIDIA driver, or one too old for this program's CUDA"
                      : cudaGetErrorString(result == cudaSuccess ? cudaErrorNoDevice : result);
    });
  }

  void Use(int index) {
    int used = -1;
    if (!the_device.compare_exchange_strong(used, index) && used != index) {
      throw InvalidArgument(absl::StrCat("[device] this process uses cuda:", used,
                                         " already and can't use cuda:", index, ", too"),
                            "run one process for each GPU");
    }
    BindThread();
  }

  std::once_flag probed_;
  int count_ = 0;
  std::string why_none_;
};

[[maybe_unused]] const bool registered = RegisterDeviceBackend(new Backend);

}  // namespace

cudaStream_t Stream() {
  BindThread();
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    CheckCuda("cudaStreamCreate", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
  }();
  return stream;
}

// Never destroyed: tensors may outlive static variables.
Pool& DevicePool() {
  static Pool* pool = new Pool(*new CudaMemory);
  return *pool;
}

void* Workspace(int64_t bytes) {
  thread_local std::vector<std::unique_ptr<DeviceStorage>> given;  // each larger than the last
  if (given.empty() || given.back()->bytes() < bytes) {
    const int64_t larger = given.empty() ? bytes : std::max(bytes, 2 * given.back()->bytes());
    given.push_back(std::make_unique<DeviceStorage>(larger));
  }
  return given.back()->data();
}

}  // namespace lathe::cuda
