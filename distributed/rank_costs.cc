#include "lathe/distributed/rank_costs.h"

#include <algorithm>
#include <numeric>

namespace lathe {

void RankClock::Begin(CollectiveTimes& times) {
  if (times_ != nullptr) return;
  times_ = &times;
  at_begin_ = at_end_of_step_ = times.seconds();
  end_of_step_ = Clock::now();
}

double RankClock::OwnSeconds() const {
  if (times_ == nullptr) return 0;
  const double seconds = std::chrono::duration<double>(Clock::now() - end_of_step_).count();
  return std::max(0.0, seconds - (times_->seconds().exposed() - at_end_of_step_.exposed()));
}

void RankClock::EndStep(const std::vector<StepRecord>& records) {
  if (times_ == nullptr) return;
  at_end_of_step_ = times_->seconds();
  end_of_step_ = Clock::now();
  ++num_steps_;
  own_seconds_.resize(records.size());
  for (size_t rank = 0; rank < records.size(); ++rank)
    own_seconds_[rank] += records[rank].own_seconds;
}

RankCosts RankClock::costs() const {
  RankCosts costs = {.num_steps = num_steps_,
                     .in_calls = {at_end_of_step_.all - at_begin_.all,
                                  std::max(0.0, at_end_of_step_.hidden - at_begin_.hidden)}};
  if (own_seconds_.size() < 2) return costs;
  const auto slowest = std::ranges::max_element(own_seconds_);
  const double others =
      (std::accumulate(own_seconds_.begin(), own_seconds_.end(), 0.0) - *slowest) /
      static_cast<double>(own_seconds_.size() - 1);
  costs.slowest_rank = static_cast<int>(slowest - own_seconds_.begin());
  costs.slowest_rank_extra = *slowest - others;
  return costs;
}

}  // namespace lathe
