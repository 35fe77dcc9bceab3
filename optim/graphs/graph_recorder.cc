#include "lathe/optim/graphs/graph_recorder.h"

#include <utility>

#include "lathe/core/base/log.h"

namespace lathe {

GraphRecorder::GraphRecorder(DeviceBackend& backend, std::string kind)
    : backend_(backend), kind_(std::move(kind)) {}

std::unique_ptr<RecordedWork> GraphRecorder::Record(const std::string& what,
                                                    const std::function<void()>& work) {
  std::unique_ptr<RecordedWork> recorded = backend_.Record(work);
  ++statistics_.recorded;
  LogDebug("recorded a CUDA graph for " + what);
  return recorded;
}

void GraphRecorder::Replay(RecordedWork& work) {
  work.Launch();
  ++statistics_.replayed;
}

void GraphRecorder::CountEager(const std::string& why) {
  if (!why.empty() && told_.insert(why).second) {
    LogDebug("no CUDA graph for " + kind_ + ": " + why);
  }
  ++statistics_.eager;
}

}  // namespace lathe
