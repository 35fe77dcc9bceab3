// A device and an NCCL that are there on any machine, for tests: memory of the host, and
// collectives that do what they would if all ranks had the same data. To be linked instead of the
// real ones.
#pragma once

#include <nccl.h>

#include <atomic>

namespace lathe {

struct FakeNccl {
  // What there is and what goes wrong.
  int devices = 1;
  bool library_is_missing = false;
  bool out_of_memory = false;
  int polls_to_settle = 0;           // how often a call is still in progress when it is looked at
  bool collectives_hang = false;     // on the device
  bool abort_hangs = false;          // for longer than any test
  ncclResult_t error = ncclSuccess;  // reported asynchronously once a collective was started
  cudaError_t last_error = cudaSuccess;  // that the next cudaGetLastError tells
  // What has been done.
  std::atomic<int> collectives = 0, finalized = 0, destroyed = 0, aborted = 0;
  std::atomic<int> live_handles = 0;  // streams, events and memory that were not freed
};

// That of this process.
FakeNccl& Fake();

}  // namespace lathe
