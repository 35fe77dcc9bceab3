#include "lathe/distributed/rendezvous/network.h"

#include <absl/strings/str_join.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // "" for one of another kind than IP, as every interface has
  bool is_ipv6 = false, is_of_link = false;
};

std::vector<InterfaceAddress> InterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    InterfaceAddress& found = addresses.emplace_back();
    found.interface = a->ifa_name;
    const int family = a->ifa_addr == nullptr ? AF_UNSPEC : a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    found.is_ipv6 = family == AF_INET6;
    if (found.is_ipv6) {
      const auto& ip = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr)->sin6_addr;
      found.is_of_link = IN6_IS_ADDR_LINKLOCAL(&ip);
    }
    char text[NI_MAXHOST] = "";
    const socklen_t size = found.is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (getnameinfo(a->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      found.address = text;
  }
  return addresses;
}

// Returns the address to use; nullopt if the interface has none.
std::optional<std::string> AddressOf(const std::string& interface, bool prefers_ipv6,
                                     std::vector<InterfaceAddress> addresses) {
  std::erase_if(addresses,
                [&](const auto& a) { return a.interface != interface || a.address.empty(); });
  std::ranges::stable_sort(addresses, {}, [&](const InterfaceAddress& a) {
    return 2 * a.is_of_link + (a.is_ipv6 != prefers_ipv6);
  });
  if (addresses.empty()) return std::nullopt;
  return addresses.front().address;
}

}  // namespace

std::optional<std::string> SocketInterfaceAddress(bool prefers_ipv6, const GetVariable& get) {
  for (const char* variable : {"LATHE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const auto list = get(variable);
    if (!list) continue;
    const std::vector<InterfaceAddress> addresses = InterfaceAddresses();
    std::set<std::string> existing;
    for (const InterfaceAddress& a : addresses) existing.insert(a.interface);
    bool exists = false;
    std::istringstream names(*list);
    for (std::string name; std::getline(names, name, ',');) {
      if (auto address = AddressOf(name, prefers_ipv6, addresses)) return address;
      exists = exists || existing.contains(name);
    }
    throw InvalidArgument(
        std::string(variable) + " is " + *list +
            (exists ? ", but that network interface has no address on this machine"
                    : ", but this machine has no such network interface"),
        "it has " + absl::StrJoin(existing, ", ") +
            "; correct the environment variable or unset it");
  }
  return std::nullopt;
}

PortRange ParsePortRange(const std::string& name, const std::string& text) {
  PortRange range;
  const char* const end = text.data() + text.size();
  const auto [dash, code] = std::from_chars(text.data(), end, range.first);
  bool is_good = code == std::errc() && dash != end && *dash == '-';
  if (is_good) {
    const auto [stop, code_of_last] = std::from_chars(dash + 1, end, range.last);
    is_good = code_of_last == std::errc() && stop == end && range.first >= 1 &&
              range.first <= range.last && range.last <= kLargestPort;
  }
  if (!is_good) {
    throw InvalidArgument(
        name + " must be two ports from 1 to 65535 such as 20000-20100 but is \"" + text + "\"",
        "give the first and the last port that processes may listen at");
  }
  return range;
}

std::optional<PortRange> ReadPortRange(const GetVariable& get) {
  const auto text = get(kPortRangeVariable);
  if (!text) return std::nullopt;
  return ParsePortRange(kPortRangeVariable, *text);
}

void CheckNetworkVariables() {
  SocketInterfaceAddress(/*prefers_ipv6=*/false);
  ReadPortRange();
}

}  // namespace lathe
