// How a rank reaches the others: those of its machine in memory, and those of other machines
// through channels. Gloo connects the machines, so that a lost rank ends all waits.
#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lathe/distributed/groups/channel.h"
#include "lathe/distributed/groups/local_ranks.h"
#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/network.h"
#include "lathe/distributed/rendezvous/socket.h"

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
  bool is_broken_off() const { return broken_off_; }

 private:
  static void Abort(Buffer* buffer) {
    buffer->abortWaitSend();
    buffer->abortWaitRecv();
  }
  std::mutex mutex_;
  std::set<Buffer*> buffers_;
  std::atomic<bool> broken_off_ = false;
};

// Who connects: the rank that carries this channel on this machine (see machine_layout.h).
struct PeerName {
  int32_t channel = 0, machine = 0;
};

// What a rank sends first over a connection. The secret is the listener's; only ranks of the job
// know it.
struct PeerGreeting {
  std::array<uint32_t, 4> secret{};
  PeerName name;
};

// Takes TCP connections of ranks of the job. A rank that connects to another one proves that it
// belongs to the job. Strangers, such as a scan of ports or another job, do no harm.
//
//   PeerListener listener("10.0.0.7", std::nullopt);  // its address() reaches the others
//   Socket socket = ConnectToPeer(address, {.machine = 3}, deadline, check);  // there
//   auto met = listener.Accept(std::chrono::milliseconds(200));  // here; said.machine is 3
class PeerListener {
 public:
  // Listens at an address of this machine, at a port of the range or any free one. Throws as Listen
  // does, and Unavailable if all ports of the range are taken.
  PeerListener(const std::string& host, const std::optional<PortRange>& ports);

  // Returns what other ranks need to connect to this one. They exchange it under kKey.
  std::string address() const;
  static constexpr char kKey[] = "gloo address";

  struct Met {
    PeerName said;
    Socket socket;
  };
  // Returns the next connection of a rank; nullopt if none comes within `time`, or earlier. Never
  // waits for what a single connection sends.
  std::optional<Met> Accept(std::chrono::milliseconds time);

 private:
  struct Newcomer {
    Socket socket;
    std::string received;  // the greeting, as far as it has come
  };
  // Reads what has come. Returns false if this newcomer is a stranger or has gone.
  bool Read(Newcomer& newcomer) const;

  static constexpr size_t kMostNewcomers = 256;  // the oldest are cut off
  std::string host_;
  Socket socket_;
  PeerGreeting expected_;
  std::list<Newcomer> newcomers_;
};

// Connects to the rank whose PeerListener has this address. Calls `on_wait`, which may throw, at
// intervals while nobody answers. Throws std::runtime_error, with the reason, at the deadline. It
// does so after two seconds if the other machine refuses the connection.
Socket ConnectToPeer(const std::string& address, PeerName self, Deadline deadline,
                     const std::function<void()>& on_wait);

// Connects the ranks that carry the same channel, each with every other. Returns the channels of
// `rank`, ascending. All ranks of `watch` call it, inside of PeerWatch::Run. `host` is an address
// of this machine, where this rank listens for others (PeerListener). Throws if a rank is lost, or
// after `timeout`. That doesn't limit the transfers.
std::vector<Channel> ConnectGloo(PeerWatch& watch, const MachineLayout& layout, int rank,
                                 const std::string& host, std::chrono::milliseconds timeout,
                                 std::shared_ptr<ActiveTransfers> transfers);

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
  // Those that this rank carries, ascending; on one machine a single one, without other members.
  std::vector<Channel> channels;
};

// Finds the ranks of this machine that read each other's memory, and connects the machines. All
// ranks of `watch` call it, inside of PeerWatch::Run.
MachineLinks LinkMachines(PeerWatch& watch, const ProcessEnvironment& env,
                          std::chrono::milliseconds timeout,
                          std::shared_ptr<ActiveTransfers> transfers);

}  // namespace lathe
