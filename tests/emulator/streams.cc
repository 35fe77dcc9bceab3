// The emulated runtime's streams and events, and all that goes to streams except kernels.
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "lathe/tests/emulator/emulator.h"

using lathe::emulator::DeviceAccess;
using lathe::emulator::Fail;
using lathe::emulator::IsRecording;

namespace {

std::atomic<int64_t> waits = 0;  // how often the host waited
std::atomic<int64_t> passed_microseconds = 0;

// All streams that exist.
struct Streams {
  std::mutex mutex;
  std::set<cudaStream_t> all;
};
// Never destroyed: other objects of static duration may still use it.
Streams& TheStreams() {
  static Streams* const streams = new Streams;
  return *streams;
}

}  // namespace

// A stream does its work at once, unless enqueued work is ahead of it.
struct CUstream_st {
  CUstream_st() {
    const std::lock_guard lock(TheStreams().mutex);
    TheStreams().all.insert(this);
  }
  ~CUstream_st() {
    {
      const std::lock_guard lock(TheStreams().mutex);
      TheStreams().all.erase(this);
    }
    {
      const std::lock_guard lock(mutex);
      quit = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  void Enqueue(std::function<void()> piece) {
    const std::lock_guard lock(mutex);
    if (!thread.joinable()) thread = std::thread([this] { Run(); });
    work.push_back(std::move(piece));
    ++enqueued;
    changed.notify_all();
  }
  bool IsDone(uint64_t position) {
    const std::lock_guard lock(mutex);
    return done >= position;
  }
  uint64_t Position() {
    const std::lock_guard lock(mutex);
    return enqueued;
  }
  void WaitUntil(uint64_t position) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= position; });
  }

 private:
  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return quit || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> piece = std::move(work.front());
      work.pop_front();
      lock.unlock();
      piece();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t enqueued = 0, done = 0;  // numbers of pieces
  bool quit = false;
  std::thread thread;
};

struct CUevent_st {
  cudaStream_t stream = nullptr;
  uint64_t position = 0;  // how much of the stream's work comes before it
  double milliseconds = 0;
};

namespace {

// Runs `piece` at once, or after what is enqueued; records it if a graph is being captured.
void RunOn(cudaStream_t stream, std::function<void()> piece) {
  if (IsRecording()) return lathe::emulator::DoOrRecord(std::move(piece));
  if (stream == nullptr || stream->IsDone(stream->Position())) return piece();
  stream->Enqueue(std::move(piece));
}

}  // namespace

void lathe::emulator::Enqueue(cudaStream_t stream, std::function<void()> work) {
  stream->Enqueue(std::move(work));
}

int64_t lathe::emulator::NumWaits() { return waits; }

void lathe::emulator::PassMicroseconds(int64_t microseconds) {
  passed_microseconds += microseconds;
}
double lathe::emulator::Milliseconds() {
  constexpr int64_t kLaunch = 10;
  return 1e-3 * static_cast<double>(kLaunch * NumLaunches() + passed_microseconds);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (IsRecording()) return lathe::emulator::FailRecording();
  ++waits;
  const DeviceAccess access;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
// A recorded copy from or to the host would use the host's memory as it is when the graph is
// launched. No caller wants that, so it is an error.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (IsRecording() && kind != cudaMemcpyDeviceToDevice) {
    return lathe::emulator::FailRecording();
  }
  RunOn(stream, [=] {
    const DeviceAccess access;
    std::memmove(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  RunOn(stream, [=] {
    const DeviceAccess access;
    std::memset(to, value, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (IsRecording()) return lathe::emulator::FailRecording();
  ++waits;
  if (stream != nullptr) stream->WaitUntil(stream->Position());
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const bool done = stream == nullptr || stream->IsDone(stream->Position());
  return done ? cudaSuccess : Fail(cudaErrorNotReady);
}
// The calling thread waits in the stream's place. This does not count as a wait of the host.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->stream != nullptr && event->stream != stream) {
    event->stream->WaitUntil(event->position);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(TheStreams().mutex);
  for (const cudaStream_t stream : TheStreams().all) cudaStreamSynchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *event = {stream, stream == nullptr ? 0 : stream->Position(), lathe::emulator::Milliseconds()};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const bool done = event->stream == nullptr || event->stream->IsDone(event->position);
  return done ? cudaSuccess : Fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++waits;
  if (event->stream != nullptr) event->stream->WaitUntil(event->position);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(to->milliseconds - from->milliseconds);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
