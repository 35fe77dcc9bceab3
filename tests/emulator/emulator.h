// Controls the emulated device and reads its counters, for tests.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lathe::emulator {

// Lets the host touch device memory during its lifetime, for stand-ins of libraries' kernels.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Sets the size of the device's memory. Memory that is allocated stays.
void SetMemorySize(int64_t bytes);
// The most shared memory that a block may ask for, in bytes.
size_t SharedMemorySize();
// Returns `error` and makes cudaGetLastError return it on this thread.
cudaError_t Fail(cudaError_t error);
// Return the number of kernels launched so far, and of those among them that graphs launched.
int64_t NumLaunches();
int64_t NumLaunchesByGraphs();
// Return the number of graphs launched so far, and how often the host waited for the device.
int64_t NumGraphLaunches();
int64_t NumWaits();
// Moves the device's clock, which events read. Each kernel launch takes 10 us; stand-ins of
// libraries' kernels pass the time that they take.
void PassMicroseconds(int64_t microseconds);
double Milliseconds();
// Returns true if work is recorded for a graph instead of being done.
bool IsRecording();
// Makes the recording invalid: it can't become a graph. Returns the error for the call that is to
// blame.
cudaError_t FailRecording();
// Makes the next instantiation of a graph fail for lack of memory.
void FailNextInstantiate();

}  // namespace lathe::emulator
