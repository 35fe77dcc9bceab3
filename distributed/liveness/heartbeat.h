// Finds out whether the other ranks live while this rank is in no call that needs them. A thread of
// each rank leaves a sign of life in the job's store at intervals, and looks for the next rank's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// The call that a rank is in and that needs the other ranks, for its thread to see.
class CurrentCall {
 public:
  // `what` names the call, as "all_reduce", and lives for ever.
  void Begin(const char* what) {
    ++number_;
    what_ = what;
  }
  void End() { what_ = nullptr; }
  const char* what() const { return what_; }  // null outside of calls
  int64_t number() const { return number_; }  // another one for each call

 private:
  std::atomic<const char*> what_ = nullptr;
  std::atomic<int64_t> number_ = 0;
};

struct HeartbeatOptions {
  // How long a rank may leave no sign of life. What rank 0 has set as kLimit in the store goes
  // before, so that all ranks of a job have the same limit.
  std::chrono::milliseconds limit;
  // How long a call may last as a whole, but for times in which this process was stopped: at
  // most a second of each counts.
  std::chrono::milliseconds longest_call;
  std::shared_ptr<const CurrentCall> call;
  // A thread calls it a moment after it has found a lost rank, or once a call has lasted too long,
  // perhaps when the Heartbeat is no more. `rank_0` is true if the store has gone or hangs.
  std::function<void(bool rank_0)> on_trouble = nullptr;
};

class Heartbeat {
 public:
  // The key in the store where the thread reports a rank that it misses, as a GroupProblem. The
  // thread also reads keys of PeerWatch.
  static constexpr char kSilent[] = "silent";
  // The key for the job's limit, in milliseconds.
  static constexpr char kLimit[] = "heartbeat limit";

  // Reads the limit from `store`, a connection of its own, and starts the threads. One of them uses
  // the store. This process counts times in its own rounds, so a job that was suspended as a whole
  // goes on, as does one on a machine that was suspended. Once any rank has left because its work
  // is done, the thread stops watching. When another rank looks for a culprit, the thread answers
  // for this rank if it is in a call.
  Heartbeat(int rank, int size, std::shared_ptr<Store> store, HeartbeatOptions options);
  // Doesn't wait for the store.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Returns what is known of a lost rank; an empty problem if none is known to be lost.
  GroupProblem FindLostRank() const;
  // From now on the thread calls `alarm(FindLostRank())` a second after it has found a lost rank.
  // The delay leaves time for calls that notice the lost rank by themselves. With an empty function
  // nothing is called any more. Returns when no alarm is being called.
  void SetAlarm(std::function<void(const GroupProblem&)> alarm);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lathe
