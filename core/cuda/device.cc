// The device, its stream, its memory and copies from and to the host.
#include "lathe/core/cuda/device.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
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

// Blocks that were freed are kept by size for later tensors: all work goes to one stream, so a
// block may be handed out again while older work still uses it.
class Pool {
 public:
  static Pool& Get() {
    static Pool* pool = new Pool;  // never destroyed: tensors may outlive static variables
    return *pool;
  }

  static int64_t SizeFor(int64_t bytes) {
    constexpr int64_t kSmall = 512, kLarge = int64_t{2} << 20;
    const int64_t step = bytes < kLarge ? kSmall : kLarge;
    return (std::max<int64_t>(bytes, 1) + step - 1) / step * step;
  }

  void* Allocate(int64_t size) {
    const std::lock_guard lock(mutex_);
    void* block = nullptr;
    if (auto& kept = kept_[size]; !kept.empty()) {
      block = kept.back();
      kept.pop_back();
    } else {
      cudaError_t result = cudaMalloc(&block, static_cast<size_t>(size));
      if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        Release();
        result = cudaMalloc(&block, static_cast<size_t>(size));
      }
      if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        throw Error(absl::StatusCode::kResourceExhausted,
                    absl::StrCat("[cuda] out of memory: ", size, " bytes asked for, ", use_.now,
                                 " in use, ", free, " of the device's ", total, " free"),
                    "use a smaller batch, shorter sequences, --bf16 or --gradient_checkpointing");
      }
      CheckCuda("cudaMalloc", result);
    }
    use_.now += size;
    use_.peak = std::max(use_.peak, use_.now);
    return block;
  }

  void Free(void* block, int64_t size) {
    const std::lock_guard lock(mutex_);
    kept_[size].push_back(block);
    use_.now -= size;
  }

  MemoryUse use() {
    const std::lock_guard lock(mutex_);
    return use_;
  }
  void ResetPeak() {
    const std::lock_guard lock(mutex_);
    use_.peak = use_.now;
  }

 private:
  void Release() {
    cudaStreamSynchronize(Stream());
    for (auto& [size, blocks] : kept_) {
      for (void* block : blocks) cudaFree(block);
      blocks.clear();
    }
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> kept_;
  MemoryUse use_;
};

class DeviceStorage : public Storage {
 public:
  DeviceStorage(int64_t bytes, int64_t size)
      : Storage(Pool::Get().Allocate(size), bytes), size_(size) {}
  ~DeviceStorage() override { Pool::Get().Free(data_, size_); }

 private:
  int64_t size_;
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
    auto storage = std::make_shared<DeviceStorage>(bytes, Pool::SizeFor(bytes));
    if (zeroed && bytes > 0) {
      CheckCuda("cudaMemset",
                cudaMemsetAsync(storage->data(), 0, static_cast<size_t>(bytes), Stream()));
    }
    return storage;
  }
  MemoryUse Memory(int) override { return Pool::Get().use(); }
  void ResetPeakMemory(int) override { Pool::Get().ResetPeak(); }

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
    if (device_ == index) return;
    Check(device_ < 0, "device", "this process uses cuda:", device_,
          " already and can't use cuda:", index, ", too; run one process for each GPU");
    CheckCuda("cudaSetDevice", cudaSetDevice(index));
    device_ = index;
  }

  std::once_flag probed_;
  int count_ = 0, device_ = -1;
  std::string why_none_;
};

[[maybe_unused]] const bool registered = RegisterDeviceBackend(new Backend);

}  // namespace

cudaStream_t Stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    CheckCuda("cudaStreamCreate", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
  }();
  return stream;
}

void* Workspace(int64_t bytes) {
  static std::unique_ptr<DeviceStorage>* workspace = new std::unique_ptr<DeviceStorage>;
  if (*workspace == nullptr || (*workspace)->bytes() < bytes) {
    workspace->reset();
    *workspace = std::make_unique<DeviceStorage>(bytes, Pool::SizeFor(bytes));
  }
  return (*workspace)->data();
}

}  // namespace lathe::cuda
