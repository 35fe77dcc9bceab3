// Which of this machine's addresses and ports a job uses, as environment variables say.
#pragma once

#include <absl/status/status.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// Returns this machine's address on the network interface that LATHE_SOCKET_IFNAME names, or else
// GLOO_SOCKET_IFNAME; nullopt if neither is set. In a list such as "ib0,eth0" the first counts that
// has an address. An address of the wanted family goes before one of the other; addresses that hold
// on one link only (fe80::) go last. Throws InvalidArgument, with the names that there are, if the
// machine has no such interface or it has no address.
std::optional<std::string> SocketInterfaceAddress(bool prefers_ipv6,
                                                  const GetVariable& get = OwnVariable);

// Ports at which the ranks of a job listen for each other: the first and the last of them.
inline constexpr char kPortRangeVariable[] = "LATHE_PORT_RANGE";
struct PortRange {
  int first = 0, last = 0;
  int size() const { return last - first + 1; }
};
// Parses a text such as "20000-20100". Throws InvalidArgument, with `name`, if it is none or the
// ports don't lie between 1 and 65535.
PortRange ParsePortRange(const std::string& name, const std::string& text);
// Reads LATHE_PORT_RANGE; nullopt if it is not set: the system then chooses ports.
std::optional<PortRange> ReadPortRange(const GetVariable& get = OwnVariable);

// Returns listen(port), for a port of the range at which that doesn't throw Unavailable; without a
// range, listen(0). Throws Unavailable if all ports of the range are taken.
template <typename Listening>
auto AtFreePort(const std::optional<PortRange>& range, const Listening& listen) {
  if (!range) return listen(0);
  // So that processes of one machine don't all try the same ports first.
  const int start = static_cast<int>(getpid() * int64_t{37} % range->size());
  for (int i = 0; i < range->size(); ++i) {
    try {
      return listen(range->first + (start + i) % range->size());
    } catch (const Error& e) {
      if (e.code() != absl::StatusCode::kUnavailable) throw;
    }
  }
  throw Error(absl::StatusCode::kUnavailable,
              "all ports from " + std::to_string(range->first) + " to " +
                  std::to_string(range->last) + " are taken",
              "give a wider range: each process of a machine listens at one of its ports");
}

}  // namespace lathe
