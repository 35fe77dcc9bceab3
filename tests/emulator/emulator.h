// The emulated device, for tests.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lathe::emulator {

// What the host may do while one lives: touch device memory, for stand-ins of libraries' kernels.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// From now on the device has so much memory; what is allocated stays.
void SetMemorySize(int64_t bytes);
// The most shared memory that a block may ask for, in bytes.
size_t SharedMemorySize();
// Returns `error`, which cudaGetLastError then tells this thread.
cudaError_t Fail(cudaError_t error);
// Kernels that were launched so far, and those of them that graphs launched.
int64_t NumLaunches();
int64_t NumLaunchesByGraphs();
// Graphs that were launched so far, and how often the host waited for the device.
int64_t NumGraphLaunches();
int64_t NumWaits();
// The device's clock, which events read: each launch takes 10 us, and stand-ins of libraries'
// kernels say what theirs take.
void PassMicroseconds(int64_t microseconds);
double Milliseconds();
// Whether work is recorded for a graph instead of being done.
bool IsRecording();
// What is being recorded can't become a graph; returns the error of the call that is to blame.
cudaError_t FailRecording();
// The next graph can't be made, for lack of memory.
void FailNextInstantiate();

}  // namespace lathe::emulator
