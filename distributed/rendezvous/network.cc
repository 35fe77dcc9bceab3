#include "lathe/distributed/rendezvous/network.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

struct InterfaceAddress {
  int place = 4;        // among the interface's addresses; the lowest is the one to use
  std::string address;  // "" if there is none
};

// Returns the address to use of each network interface.
std::map<std::string, InterfaceAddress> InterfaceAddresses(bool prefers_ipv6) {
  std::map<std::string, InterfaceAddress> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    InterfaceAddress& best = addresses[a->ifa_name];
    const int family = a->ifa_addr == nullptr ? AF_UNSPEC : a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const bool is_ipv6 = family == AF_INET6;
    const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr);
    const bool is_of_link = is_ipv6 && IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr);
    const int place = 2 * is_of_link + (is_ipv6 != prefers_ipv6);
    char text[NI_MAXHOST] = "";
    const socklen_t size = is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (place < best.place &&
        getnameinfo(a->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      best = {place, text};
  }
  return addresses;
}

}  // namespace

std::optional<std::string> SocketInterfaceAddress(bool prefers_ipv6, const GetVariable& get) {
  for (const char* variable : {"LATHE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const auto list = get(variable);
    if (!list) continue;
    const std::map<std::string, InterfaceAddress> existing = InterfaceAddresses(prefers_ipv6);
    bool exists = false;
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(*list, ','))) {
      const auto found = existing.find(name);
      if (found == existing.end()) continue;
      if (!found->second.address.empty()) return found->second.address;
      exists = true;
    }
    const auto name_of = [](std::string* out, const auto& entry) { out->append(entry.first); };
    throw InvalidArgument(
        absl::StrCat(variable, " is ", *list, ", but ",
                     exists ? "that network interface has no address on this machine"
                            : "this machine has no such network interface"),
        absl::StrCat("it has ", absl::StrJoin(existing, ", ", name_of),
                     "; correct the environment variable or unset it"));
  }
  return std::nullopt;
}

PortRange ParsePortRange(const std::string& name, const std::string& text) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const PortRange range = {.first = ParseNumberText<int>(ends.first).value_or(0),
                           .last = ParseNumberText<int>(ends.second).value_or(0)};
  if (range.first >= 1 && range.first <= range.last && range.last <= kLargestPort) return range;
  throw InvalidArgument(
      name + " must be two ports from 1 to 65535 such as 20000-20100 but is \"" + text + "\"",
      "give the first and the last port that processes may listen at");
}

std::optional<PortRange> ReadPortRange(const GetVariable& get) {
  const auto text = get(kPortRangeVariable);
  return text ? std::optional(ParsePortRange(kPortRangeVariable, *text)) : std::nullopt;
}

}  // namespace lathe
