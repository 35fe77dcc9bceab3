// How a rank reaches the others: those of its machine in memory, and those of other machines
// through channels. Gloo connects the machines, so that a lost rank ends all waits.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lathe/distributed/groups/channel.h"
#include "lathe/distributed/groups/local_ranks.h"
#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// The buffers whose transfers may be under way, those of Gloo's own algorithms too. Gloo's TCP has
// a gap: a send that finds its connection broken, because the peer has just ended, may wait until
// the timeout. All ranks that wait for this one then wait as long. So another thread breaks the
// waits off once a rank is known to be lost. They throw gloo::IoException then.
class ActiveTransfers {
 public:
  using Buffer = gloo::transport::UnboundBuffer;
  void Add(Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.insert(buffer);
    if (broken_off_) Abort(buffer);
  }
  void Remove(Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(buffer);
  }
  // Ends all waits, and all later ones. Nothing else limits them: once a rank is lost or a call has
  // lasted too long, the heartbeat's threads call this.
  void BreakOff() {
    const std::lock_guard lock(mutex_);
    broken_off_ = true;
    for (Buffer* buffer : buffers_) Abort(buffer);
  }
  bool is_broken_off() const {
    const std::lock_guard lock(mutex_);
    return broken_off_;
  }

 private:
  static void Abort(Buffer* buffer) {
    buffer->abortWaitSend();
    buffer->abortWaitRecv();
  }
  mutable std::mutex mutex_;
  std::set<Buffer*> buffers_;
  bool broken_off_ = false;
};

// A rank's place in a set of ranks that are to be connected, each with every other.
struct GlooMembership {
  int set = 0;             // the set's number, the same on all of its members
  int member = 0;          // this rank's index in `ranks`
  std::vector<int> ranks;  // the members
};

// Returns a context for each membership; the members are the ranks of that context. All ranks of
// `watch` call it, inside of PeerWatch::Run. `host` is an address of this machine, where this rank
// listens for others (PeerListener). Throws if a rank is lost, or after `timeout`. That doesn't
// limit the transfers.
std::vector<std::shared_ptr<gloo::Context>> ConnectGloo(
    PeerWatch& watch, const std::vector<GlooMembership>& memberships, const std::string& host,
    std::chrono::milliseconds timeout, std::shared_ptr<ActiveTransfers> transfers);

// The key under which ranks exchange PeerListener::address.
inline constexpr char kGlooAddress[] = "gloo address";

// What a rank tells all others first, as bytes (see PeerWatch::Exchange). Then it tells under kMet,
// by "1" or "0", whether it can read the memory of the other ranks of its machine.
struct Introduction {
  static constexpr char kKey[] = "introduction", kMet[] = "met";
  RankPlacement placement;
  LocalRanks::Hello hello;
};

struct MachineLinks {
  MachineLayout layout{{}};
  std::unique_ptr<LocalRanks> local;
  std::vector<int> carried;       // the numbers of this rank's channels, ascending
  std::vector<Channel> channels;  // on one machine a single one, without other members
};

// Finds the ranks of this machine that read each other's memory, and connects the machines. All
// ranks of `watch` call it, inside of PeerWatch::Run.
MachineLinks LinkMachines(PeerWatch& watch, const ProcessEnvironment& env,
                          std::chrono::milliseconds timeout,
                          std::shared_ptr<ActiveTransfers> transfers);

}  // namespace lathe
