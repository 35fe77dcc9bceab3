// Kernel tables for a device other than the host's processor. They are structs of function
// pointers, as in core/cpu/, which core/cuda/ fills with functions that take device pointers and
// queue their work.
//
// An op whose host kernels have a table in core/cpu/ uses that struct for the device too. Any other
// op declares its table in a header of its own in core/kernels/.
#pragma once

#include "lathe/core/base/error.h"

namespace lathe {

template <typename Table>
struct DeviceTable {
  inline static const Table* table = nullptr;
};

// Called before main by each source of kernels. Returns true.
template <typename Table>
bool RegisterDeviceKernels(const Table& table) {
  DeviceTable<Table>::table = &table;
  return true;
}

[[noreturn]] inline void ThrowNoDeviceKernels() {
  throw InvalidArgument("[device] this program was built without CUDA's kernels",
                        "build it where CUDA is installed, or use the CPU");
}

template <typename Table>
const Table& DeviceKernels() {
  if (DeviceTable<Table>::table == nullptr) ThrowNoDeviceKernels();
  return *DeviceTable<Table>::table;
}

}  // namespace lathe
