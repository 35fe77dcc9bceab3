// The interface between tensors and a device other than the host's processor. core/cuda/ implements
// it in programs that link it. The rest of Lathe includes none of CUDA's headers and builds without
// them.
//
// All work on a device is queued on one stream, in the order of the calls: a call may return before
// its kernel has run. A process uses one device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lathe/core/tensor.h"

namespace lathe {

// A part of a device's memory, for tensors of one purpose. It stays while one of them lives.
class DeviceMemoryPool {
 public:
  virtual ~DeviceMemoryPool() = default;
  // Gives free memory back to the device. To be called only when no recorded work uses it any more.
  virtual void Trim() = 0;
};

// Work that was recorded instead of run: a CUDA graph. Its kernels read and write the same
// addresses each time, whoever owns the memory by then.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Queues all of the work.
  virtual void Launch() = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // Returns the build's CUDA version and GPUs: "CUDA 13.0, kernels for sm_90".
  virtual std::string DescribeBuild() = 0;
  // Returns the number of devices that this process can use. Never throws.
  virtual int Count() = 0;
  // Returns why there is no device, in one line: "no NVIDIA driver is installed".
  virtual std::string UnavailableReason() = 0;
  // Describes a device, such as "NVIDIA H200, compute capability 9.0, 139.8 GiB".
  virtual std::string Describe(int index) = 0;

  // Called by Storage::Allocate. Throws ResourceExhausted if there is not enough memory.
  virtual std::shared_ptr<Storage> Allocate(int64_t bytes, int index, bool zeroed) = 0;
  virtual MemoryUse Memory(int index) = 0;
  virtual void ResetPeakMemory(int index) = 0;

  // Queues a copy. `from`, on the host, may change as soon as the call returns.
  virtual void CopyToDevice(void* to, const void* from, int64_t bytes) = 0;
  // Does the same for input of later work, such as the batch of the next step. The copy from the
  // host starts at once, beside the queued work; only a copy within the device is queued behind it.
  virtual void PrefetchToDevice(void* to, const void* from, int64_t bytes) = 0;
  virtual void CopyOnDevice(void* to, const void* from, int64_t bytes) = 0;
  // Waits for the queued work and for the copy.
  virtual void CopyToHost(void* to, const void* from, int64_t bytes) = 0;
  virtual void Synchronize() = 0;
  // Returns the queue (a cudaStream_t), for libraries that queue work themselves.
  virtual void* WorkQueue() = 0;

  virtual std::shared_ptr<DeviceMemoryPool> NewMemoryPool() = 0;
  // From now on this thread's tensors take their memory from `memory`; null: from the shared pool.
  // Returns the previous setting.
  virtual std::shared_ptr<DeviceMemoryPool> UseMemoryPool(
      std::shared_ptr<DeviceMemoryPool> memory) = 0;
  // Returns the memory that `storage`, of this backend, was taken from; null for the shared pool.
  virtual std::shared_ptr<DeviceMemoryPool> MemoryPoolOf(const Storage& storage) const = 0;
  // Records the work that `work` queues. `work` must do nothing else: copies from or to the host
  // throw. Exceptions from `work` are passed on. Memory that `work` takes and gives back is used
  // again by each launch. So `work` must run under a DeviceMemoryPoolScope: taking memory from the
  // shared pool throws.
  virtual std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) = 0;
};

// While one exists, this thread's tensors on the device take their memory from `memory`.
class DeviceMemoryPoolScope {
 public:
  DeviceMemoryPoolScope(DeviceBackend& backend, std::shared_ptr<DeviceMemoryPool> memory)
      : backend_(backend), before_(backend.UseMemoryPool(std::move(memory))) {}
  ~DeviceMemoryPoolScope() { backend_.UseMemoryPool(std::move(before_)); }
  DeviceMemoryPoolScope(const DeviceMemoryPoolScope&) = delete;
  DeviceMemoryPoolScope& operator=(const DeviceMemoryPoolScope&) = delete;

 private:
  DeviceBackend& backend_;
  std::shared_ptr<DeviceMemoryPool> before_;
};

// While one exists, this thread's tensors take memory from where `leaf` has its own. It is for
// tensors that live as long as the leaf, made while a pass uses a memory of its own. Has no effect
// if the leaf is on the host.
class LeafMemoryScope {
 public:
  explicit LeafMemoryScope(const TensorImpl& leaf);

 private:
  std::optional<DeviceMemoryPoolScope> scope_;
};

// Returns the backend that this program is linked with; null if none.
DeviceBackend* FindDeviceBackend();
// Throws, with the reason, if `device` does not exist.
DeviceBackend& BackendOf(Device device);
// Returns the device that `wish` names: "cpu", "cuda" (device number `index`), "cuda:1", or "auto",
// which is "cuda" if there is one, else "cpu". Throws for other names and for missing devices.
Device ChooseDevice(const std::string& wish, int index = 0);
// Called by the backend before main. Returns true.
bool RegisterDeviceBackend(DeviceBackend* backend);

}  // namespace lathe
