// TCP connections between the ranks of a job. A rank that connects to another one proves that it
// belongs to the job. Strangers, such as a scan of ports or another job, do no harm.
//
//   PeerListener listener("10.0.0.7", std::nullopt);  // its address() reaches the others
//   Socket socket = ConnectToPeer(address, {.set = 0, .member = 3}, deadline, check);  // there
//   auto met = listener.Accept(std::chrono::milliseconds(200));  // here; said.member is 3
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>

#include "lathe/distributed/rendezvous/network.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

// Who connects: a member of a set of ranks that get connections with each other.
struct PeerName {
  int32_t set = 0, member = 0;
};

// What a rank sends first over a connection. The secret is the listener's; only ranks of the job
// know it.
struct PeerGreeting {
  std::array<uint32_t, 4> secret{};
  PeerName name;
};

class PeerListener {
 public:
  // Listens at an address of this machine, at a port of the range or any free one. Throws as Listen
  // does, and Unavailable if all ports of the range are taken.
  PeerListener(const std::string& host, const std::optional<PortRange>& ports);

  // Returns what other ranks need to connect to this one.
  std::string address() const;

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

}  // namespace lathe
