// Whether the other ranks live, while this one is in no call that needs them: each rank's thread
// leaves a sign in the job's store now and then, and looks for its neighbour's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

class LifeSigns {
 public:
  // What the thread finds in the store beside the signs themselves; see PeerWatch.
  static constexpr char kSilent[] = "silent";  // "rank 2 does not answer while training"

  // store: a connection of this object's own. A rank is silent that has left no sign in `timeout`,
  // counted in this process's own rounds: a job that was suspended as a whole goes on, unless that
  // was in a call that needs the others, and for longer than the timeout. Once a rank has done all
  // its part, nobody is looked after any more. on_loss: called on the thread, a moment after a
  // loss, perhaps when this object is no more. `rank_0`: the store has gone or hangs.
  LifeSigns(int rank, int size, std::shared_ptr<Store> store, std::chrono::milliseconds timeout,
            std::function<void(bool rank_0)> on_loss = nullptr);
  // Doesn't wait for the store.
  ~LifeSigns();
  LifeSigns(const LifeSigns&) = delete;
  LifeSigns& operator=(const LifeSigns&) = delete;

  // "rank 2 has ended while training"; "": nobody is known to be lost.
  std::string Loss() const;

  // From now on `alarm(Loss())` is called on the thread, a second after a loss: who notices it by
  // itself has that long. An empty one: none is. Returns when none is being called.
  void SetAlarm(std::function<void(const std::string&)> alarm);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lathe
