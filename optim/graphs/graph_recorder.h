// GraphRecorder records and repeats work of one kind as CUDA graphs. It counts what it does, and
// LogDebug says what was recorded and what can't be.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "lathe/core/device_backend.h"

namespace lathe {

struct GraphStatistics {
  int64_t recorded = 0;  // graphs that were recorded
  int64_t replayed = 0;  // runs of a graph, including the first one after it was recorded
  int64_t eager = 0;     // runs without a graph
};

class GraphRecorder {
 public:
  // `kind`: what is recorded, for the log: "the step".
  GraphRecorder(DeviceBackend& backend, std::string kind);

  // Records what `work` queues; see DeviceBackend::Record. `what` describes it in the log.
  std::unique_ptr<RecordedWork> Record(const std::string& what, const std::function<void()>& work);
  void Replay(RecordedWork& work);
  // Call it for each run without a graph. The log gives each reason once. "" is for runs that need
  // none, such as the first one.
  void CountEager(const std::string& why = "");
  // From now on given_up() returns the reason. The caller records nothing more.
  void GiveUp(const std::string& why) { given_up_ = why; }
  const std::string& given_up() const { return given_up_; }  // "": nothing was given up

  const GraphStatistics& statistics() const { return statistics_; }

 private:
  DeviceBackend& backend_;
  std::string kind_;
  std::string given_up_;
  std::set<std::string> told_;  // the reasons that the log has given
  GraphStatistics statistics_;
};

}  // namespace lathe
