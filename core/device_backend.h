// The seam between tensors and a device that isn't the host's processor. core/cuda/ implements it
// where a program links it; the rest of Lathe sees neither CUDA's headers nor whether they exist.
//
// All work on a device is queued on one stream, in the order of the calls: a kernel may return
// before it has run. A process uses one device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lathe/core/tensor.h"

namespace lathe {

// A part of a device's memory for tensors of one purpose. It stays while one of them lives.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Gives back what no tensor holds, when no recorded work uses it any more.
  virtual void Trim() = 0;
};

// Work that was recorded instead of done: a CUDA graph. Its kernels read and write the same places
// each time, whoever owns them.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Queues all of it.
  virtual void Launch() = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // What the program was built for: "CUDA 13.0, kernels for sm_90".
  virtual std::string Build() = 0;
  // Devices that this process can use. Never throws.
  virtual int Count() = 0;
  // Why there is none, in one line: "no NVIDIA driver is installed".
  virtual std::string WhyNone() = 0;
  // "NVIDIA H200, compute capability 9.0, 139.8 GiB".
  virtual std::string Describe(int index) = 0;

  // Throws ResourceExhausted if memory doesn't suffice; Storage::Allocate calls it.
  virtual std::shared_ptr<Storage> Allocate(int64_t bytes, int index, bool zeroed) = 0;
  virtual MemoryUse Memory(int index) = 0;
  virtual void ResetPeakMemory(int index) = 0;

  // Behind the work that is queued. `from` on the host may change once it returns.
  virtual void CopyToDevice(void* to, const void* from, int64_t bytes) = 0;
  // The same for what later work reads, a step's inputs: the way from the host is made at once,
  // beside the work that is queued; only a copy on the device comes behind it.
  virtual void CopyAhead(void* to, const void* from, int64_t bytes) = 0;
  virtual void CopyOnDevice(void* to, const void* from, int64_t bytes) = 0;
  // Waits until the work that is queued and the copy are done.
  virtual void CopyToHost(void* to, const void* from, int64_t bytes) = 0;
  virtual void Synchronize() = 0;
  // Where the work is queued, for libraries that queue more: a cudaStream_t.
  virtual void* WorkQueue() = 0;

  virtual std::shared_ptr<DeviceMemory> NewMemory() = 0;
  // From now on this thread's tensors take memory from there; null: from what all share. Returns
  // what it was.
  virtual std::shared_ptr<DeviceMemory> UseMemory(std::shared_ptr<DeviceMemory> memory) = 0;
  // Where `storage`, of this backend, lies; null: in what all share.
  virtual std::shared_ptr<DeviceMemory> MemoryOf(const Storage& storage) const = 0;
  // Runs `work`, which must do nothing but queue work: it is recorded. What `work` throws, this
  // throws; copies from and to the host are errors. Memory that it takes and gives back is used
  // each time the work is done: give it memory of its own; to take what all share is an error.
  virtual std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) = 0;
};

// While one lives, this thread's tensors on the device take memory from `memory`.
class DeviceMemoryScope {
 public:
  DeviceMemoryScope(DeviceBackend& backend, std::shared_ptr<DeviceMemory> memory)
      : backend_(backend), before_(backend.UseMemory(std::move(memory))) {}
  ~DeviceMemoryScope() { backend_.UseMemory(std::move(before_)); }
  DeviceMemoryScope(const DeviceMemoryScope&) = delete;
  DeviceMemoryScope& operator=(const DeviceMemoryScope&) = delete;

 private:
  DeviceBackend& backend_;
  std::shared_ptr<DeviceMemory> before_;
};

// While one lives, this thread's tensors take memory from where `leaf` lies: what lives as long as
// it does, and not only as long as a pass with memory of its own. On the host nothing happens.
class LeafMemoryScope {
 public:
  explicit LeafMemoryScope(const TensorImpl& leaf);

 private:
  std::optional<DeviceMemoryScope> scope_;
};

// The backend that this program is linked with; null: none.
DeviceBackend* FindDeviceBackend();
// Throws, with the reason, if `device` is not there.
DeviceBackend& BackendOf(Device device);
// The device that `wish` names: "cpu", "cuda" (the one of number `index`), "cuda:1", or "auto":
// "cuda" where there is one, else "cpu". Throws for other names and for devices that aren't there.
Device ChooseDevice(const std::string& wish, int index = 0);
// Called before main by the backend. Returns true.
bool RegisterDeviceBackend(DeviceBackend* backend);

}  // namespace lathe
