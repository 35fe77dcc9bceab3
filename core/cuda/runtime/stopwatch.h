// Measures the time that the device takes.
#pragma once

#include "lathe/core/cuda/runtime/device.h"

namespace lathe::cuda {

// Two events around work on the stream.
class Stopwatch {
 public:
  Stopwatch() {
    for (cudaEvent_t& event : events_) {
      CheckCuda("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDefault));
    }
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void Start() { CheckCuda("cudaEventRecord", cudaEventRecord(events_[0], Stream())); }
  // Waits for the work. Returns the milliseconds since Start.
  float Stop() {
    float milliseconds = 0;
    CheckCuda("cudaEventRecord", cudaEventRecord(events_[1], Stream()));
    CheckCuda("cudaEventSynchronize", cudaEventSynchronize(events_[1]));
    CheckCuda("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return milliseconds;
  }

 private:
  cudaEvent_t events_[2] = {};
};

}  // namespace lathe::cuda
