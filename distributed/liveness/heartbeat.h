// Finds out whether the other ranks live while this rank is in no call that needs them. A thread of
// each rank leaves a sign of life in the job's store at intervals, and looks for the next rank's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

class Heartbeat {
 public:
  // The key in the store where the thread reports a rank that it misses, as a GroupProblem. The
  // thread also reads keys of PeerWatch.
  static constexpr char kSilent[] = "silent";

  // Starts the thread. It uses `store`, a connection of its own.
  // A rank is silent if it has left no sign for `timeout`. This process counts the time in its own
  // rounds, so a job that was suspended as a whole goes on. The exception is a job that was
  // suspended for longer than the timeout in a call that needs the other ranks. Once any rank has
  // left because its work is done, the thread stops watching.
  // The thread calls `on_lost_rank` a moment after it has found a lost rank, perhaps when this
  // object is no more. `rank_0` is true if the store has gone or hangs.
  Heartbeat(int rank, int size, std::shared_ptr<Store> store, std::chrono::milliseconds timeout,
            std::function<void(bool rank_0)> on_lost_rank = nullptr);
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
