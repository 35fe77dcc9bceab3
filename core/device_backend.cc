#include "lathe/core/device_backend.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

namespace lathe {
namespace {

DeviceBackend*& TheBackend() {
  static DeviceBackend* backend = nullptr;
  return backend;
}

}  // namespace

LeafMemoryScope::LeafMemoryScope(const TensorImpl& leaf) {
  if (leaf.device.is_cpu()) return;
  DeviceBackend& backend = BackendOf(leaf.device);
  scope_.emplace(backend, leaf.storage == nullptr ? nullptr : backend.MemoryPoolOf(*leaf.storage));
}

DeviceBackend* FindDeviceBackend() { return TheBackend(); }

bool RegisterDeviceBackend(DeviceBackend* backend) {
  TheBackend() = backend;
  return true;
}

Device ChooseDevice(const std::string& wish, int index) {
  if (wish == "cpu") return {};
  Device device = {DeviceType::kCUDA, index};
  if (wish == "auto") {
    DeviceBackend* backend = FindDeviceBackend();
    return backend != nullptr && index < backend->Count() ? device : Device{};
  }
  absl::string_view number = wish;
  const bool named = absl::ConsumePrefix(&number, "cuda") &&
                     (number.empty() || (absl::ConsumePrefix(&number, ":") &&
                                         absl::SimpleAtoi(number, &device.index)));
  if (!named) {
    throw InvalidArgument(absl::StrCat("[device] unknown device \"", wish, "\""),
                          "use auto, cpu, cuda or cuda:NUMBER");
  }
  BackendOf(device);
  return device;
}

DeviceBackend& BackendOf(Device device) {
  DeviceBackend* backend = FindDeviceBackend();
  if (backend == nullptr) {
    throw InvalidArgument(absl::StrCat("[device] there is no ", ToString(device),
                                       ": this program was built without CUDA"),
                          "build it where CUDA is installed, or use the CPU");
  }
  const int count = backend->Count();
  if (device.index >= 0 && device.index < count) return *backend;
  throw InvalidArgument(
      absl::StrCat("[device] there is no ", ToString(device), ": ",
                   count == 0 ? backend->UnavailableReason()
                              : absl::StrCat("there are ", count, " devices")),
      count == 0 ? "use the CPU" : absl::StrCat("use cuda:0 to cuda:", count - 1));
}

}  // namespace lathe
