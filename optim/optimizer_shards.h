// How an optimizer's update is sharded over ranks (the first stage of ZeRO, Rajbhandari et al.
// 2020). Each rank updates its own stripes of the arena and keeps the moments of those only.
// Afterwards it gets the other ranks' new values.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"

namespace lathe {

// How the ranks divide the update: one rank's view. Ranges count elements of the arena; they are
// ascending and don't overlap.
struct OptimizerShards {
  std::vector<ElementRange> ranges;  // what is sharded; all ranks update the rest
  std::vector<ElementRange> own;     // this rank's stripes of the ranges
  std::vector<ElementRange> others;  // the other ranks' stripes of them
  int rank = 0, size = 1;
  // The functions below are collectives.
  // Sets `others` in data, which is as large as the arena, to the values that those ranks have
  // there. Elements outside of `changed` are the same on all ranks already. `changed` must be
  // ascending, without overlap and the same on all ranks.
  std::function<void(std::span<float> data, const std::vector<ElementRange>& changed)> gather;
  // Does the same for the parameters' values, but may return before all is there. The storage then
  // gets its arrivals. Empty: `gather` does it.
  std::function<void(const Tensor& values, const std::vector<ElementRange>& changed)> begin_gather;
  // Returns when all ranks have called it.
  std::function<void()> barrier;
  // Returns the sum of all ranks' values, with the same bits on each rank.
  std::function<double(double)> sum;
};

// The division in force. It changes when parameters are frozen or thawed. Null: the update is not
// sharded.
struct CurrentShards {
  std::shared_ptr<const OptimizerShards> now;
};

}  // namespace lathe
