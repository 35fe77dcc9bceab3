// Gathers of a group's ranges that go on beside the rank's computation, one after the other.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/collective_times.h"

namespace lathe {

class BackgroundGathers {
 public:
  explicit BackgroundGathers(CollectiveTimes& times) : times_(times) {}
  // Waits for all gathers.
  ~BackgroundGathers() { WaitForAll(); }
  BackgroundGathers(const BackgroundGathers&) = delete;
  BackgroundGathers& operator=(const BackgroundGathers&) = delete;

  // Calls gather(range) for each of the ranges of `data`, [n] float32, after the gathers that were
  // begun before. The last range comes first. The ranges are ascending and don't overlap. Each call
  // brings the elements of its range. The first error ends the calls. Until they end, the tensor's
  // storage has these arrivals.
  void Begin(const Tensor& data, std::vector<ElementRange> ranges,
             std::function<void(const ElementRange&)> gather);
  // Returns once the gathers have ended. All ranks make their other collectives after this, so
  // that their order is the same everywhere. Does not throw: their arrivals do.
  void WaitForAll();

 private:
  class Work;
  CollectiveTimes& times_;
  std::shared_future<void> last_;  // of the last gathers that were begun
};

}  // namespace lathe
