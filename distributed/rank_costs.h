// Measures what training in several ranks costs: the time in collectives, and the slowest rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "lathe/distributed/groups/collective_times.h"
#include "lathe/distributed/reduce/step_record.h"

namespace lathe {

struct RankCosts {
  int64_t num_steps = 0;              // those measured; 0: nothing was
  CollectiveTimes::Seconds in_calls;  // this rank's
  int slowest_rank = 0;               // the one whose own work took longest
  double slowest_rank_extra = 0;      // seconds beyond the mean of the other ranks' work
};

// Measures a rank's steps. Its own work is all that it does in a step but wait for collectives.
class RankClock {
 public:
  // Starts the clock at the first step; later calls do nothing. `times`: those of the collectives'
  // group.
  void Begin(CollectiveTimes& times);
  // Returns the seconds of this rank's own work since the last step. 0 before Begin.
  double OwnSeconds() const;
  // Ends a step with the records of all ranks. Does nothing before Begin.
  void EndStep(const std::vector<StepRecord>& records);
  RankCosts costs() const;

 private:
  using Clock = std::chrono::steady_clock;
  CollectiveTimes* times_ = nullptr;
  CollectiveTimes::Seconds at_begin_, at_end_of_step_;
  Clock::time_point end_of_step_;
  int64_t num_steps_ = 0;
  std::vector<double> own_seconds_;  // of each rank, over all steps
};

}  // namespace lathe
