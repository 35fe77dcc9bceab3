// The emulated runtime's graphs: work that is recorded instead of being done.
#include <cuda_runtime.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "lathe/tests/emulator/emulator.h"

struct CUgraph_st {
  std::vector<std::function<void()>> work;
  bool invalid = false;  // a call came that can't be recorded
};

namespace lathe::emulator {
namespace {

std::unique_ptr<CUgraph_st> recording;  // null: work is done at once
std::atomic<int64_t> graph_launches = 0, launches_by_graphs = 0;
bool next_instantiate_fails = false;

}  // namespace

void DoOrRecord(std::function<void()> work) {
  if (recording == nullptr) return work();
  recording->work.push_back(std::move(work));
}
bool IsRecording() { return recording != nullptr; }
cudaError_t FailRecording() {
  recording->invalid = true;
  return Fail(cudaErrorStreamCaptureUnsupported);
}
void FailNextInstantiate() { next_instantiate_fails = true; }
int64_t NumGraphLaunches() { return graph_launches; }
int64_t NumLaunchesByGraphs() { return launches_by_graphs; }

}  // namespace lathe::emulator

using lathe::emulator::Fail;
using lathe::emulator::recording;

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = recording == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (recording != nullptr) return lathe::emulator::FailRecording();
  recording = std::make_unique<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = recording.release();
  if (*graph == nullptr) return Fail(cudaErrorInvalidValue);
  if (!(*graph)->invalid) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return Fail(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (std::exchange(lathe::emulator::next_instantiate_fails, false)) {
    return Fail(cudaErrorMemoryAllocation);
  }
  *made = new CUgraph_st(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  if (recording != nullptr) return lathe::emulator::FailRecording();
  ++lathe::emulator::graph_launches;
  const int64_t launches = lathe::emulator::NumLaunches();
  for (const auto& work : graph->work) work();
  lathe::emulator::launches_by_graphs += lathe::emulator::NumLaunches() - launches;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }
