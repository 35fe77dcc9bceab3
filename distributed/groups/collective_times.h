// Measures how long a rank's collectives take, and how much of that time its computation hides.
#pragma once

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

  // Measures one collective of the calling thread, for as long as the object lives.
  class Call {
   public:
    explicit Call(CollectiveTimes& times) : times_(times) {}
    ~Call() {
      const double seconds = times_.SecondsSince(start_);
      times_.Add({seconds, is_in_background_ ? seconds : 0});
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CollectiveTimes& times_;
    const Clock::time_point start_ = Clock::now();
  };
  // Says that the calling thread's collectives go on beside the computation from now on.
  static void SetInBackground() { is_in_background_ = true; }
  // Measures a wait for such collectives, if it is the computing thread's.
  class Wait {
   public:
    explicit Wait(CollectiveTimes& times) : times_(times) {}
    ~Wait() {
      if (!is_in_background_) times_.Add({0, -times_.SecondsSince(start_)});
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    CollectiveTimes& times_;
    const Clock::time_point start_ = Clock::now();
  };

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
