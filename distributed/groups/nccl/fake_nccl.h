// A fake device and a fake NCCL for tests on any machine, to be linked instead of the real ones.
// Its device memory is host memory. Its collectives behave as if all ranks had the same data.
#pragma once

#include <nccl.h>

#include <atomic>

namespace lathe {

struct FakeNccl {
  // Settings: the devices that exist and the faults that occur.
  int devices = 1;
  bool library_is_missing = false;
  bool out_of_memory = false;
  int polls_to_settle = 0;               // how many polls report a call as in progress
  bool collectives_hang = false;         // collectives never end on the device
  bool abort_hangs = false;              // an abort takes longer than any test
  ncclResult_t error = ncclSuccess;      // reported asynchronously once a collective was started
  cudaError_t last_error = cudaSuccess;  // returned by the next cudaGetLastError
  // Counts of the calls that were made.
  std::atomic<int> collectives = 0, finalized = 0, destroyed = 0, aborted = 0;
  std::atomic<int> live_handles = 0;  // streams, events and memory that were not freed
};

// Returns the fake of this process.
FakeNccl& Fake();

}  // namespace lathe
