// Measures how long a rank's collectives take, and how much of that time its computation hides.
#pragma once

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <chrono>
#include <mutex>

namespace lathe {

class CollectiveTimes {
 public:
  using Clock = std::chrono::steady_clock;
  struct Seconds {
    double all = 0;     // in collectives, with the time that they wait for other ranks
    double hidden = 0;  // the part in which another thread of this rank went on computing
    // Returns the time that the computation has waited.
    double exposed() const { return all - hidden; }
  };

  // Returns what has been measured so far.
  Seconds seconds() const {
    const std::lock_guard lock(mutex_);
    return {seconds_.all, std::clamp(seconds_.hidden, 0.0, seconds_.all)};
  }

  // Says that the calling thread's collectives go on beside the computation from now on.
  static void SetInBackground() { is_in_background_ = true; }

  // Measures one collective of the calling thread, for as long as the returned object lives.
  auto MeasureCall() {
    return absl::Cleanup([this, start = Clock::now()] {
      const double seconds = SecondsSince(start);
      Add({seconds, is_in_background_ ? seconds : 0});
    });
  }
  // Measures likewise a wait for collectives in the background, if it is the computing thread's.
  auto MeasureWait() {
    return absl::Cleanup([this, start = Clock::now()] {
      if (!is_in_background_) Add({0, -SecondsSince(start)});
    });
  }

 private:
  static double SecondsSince(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void Add(const Seconds& more) {
    const std::lock_guard lock(mutex_);
    seconds_.all += more.all;
    seconds_.hidden += more.hidden;
  }
  inline static thread_local bool is_in_background_ = false;
  mutable std::mutex mutex_;
  Seconds seconds_;
};

}  // namespace lathe
