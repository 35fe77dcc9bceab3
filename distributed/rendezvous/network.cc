#include "lathe/distributed/rendezvous/network.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

struct InterfaceAddress {
  std::string interface, address;
  bool is_ipv6 = false, is_of_link = false;
};

std::vector<std::string> InterfaceNames() {
  std::vector<std::string> names;
  struct if_nameindex* const all = if_nameindex();
  for (auto* i = all; i != nullptr && i->if_index != 0; ++i) names.emplace_back(i->if_name);
  if (all != nullptr) if_freenameindex(all);
  return names;
}

std::vector<InterfaceAddress> InterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr) continue;
    const int family = a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress found = {
        .interface = a->ifa_name, .address = "", .is_ipv6 = family == AF_INET6};
    if (found.is_ipv6) {
      const auto& ip = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr)->sin6_addr;
      found.is_of_link = IN6_IS_ADDR_LINKLOCAL(&ip);
    }
    char text[NI_MAXHOST] = "";
    const socklen_t size = found.is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (getnameinfo(a->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    found.address = text;
    addresses.push_back(std::move(found));
  }
  return addresses;
}

// Returns the address to use; nullopt if the interface has none.
std::optional<std::string> AddressOf(const std::string& interface, bool prefers_ipv6) {
  std::vector<InterfaceAddress> addresses = InterfaceAddresses();
  std::erase_if(addresses, [&](const auto& a) { return a.interface != interface; });
  std::ranges::stable_sort(addresses, {}, [&](const InterfaceAddress& a) {
    return 2 * a.is_of_link + (a.is_ipv6 != prefers_ipv6);
  });
  if (addresses.empty()) return std::nullopt;
  return addresses.front().address;
}

}  // namespace

std::optional<std::string> SocketInterfaceAddress(const GetVariable& get, bool prefers_ipv6) {
  for (const char* variable : {"LATHE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const auto list = get(variable);
    if (!list) continue;
    const std::vector<std::string> existing = InterfaceNames();
    bool exists = false;
    std::istringstream names(*list);
    for (std::string name; std::getline(names, name, ',');) {
      if (auto address = AddressOf(name, prefers_ipv6)) return address;
      exists = exists || std::ranges::count(existing, name) > 0;
    }
    std::string all;
    for (const std::string& name : existing) all += (all.empty() ? "" : ", ") + name;
    throw InvalidArgument(
        std::string(variable) + " is " + *list +
            (exists ? ", but that network interface has no address on this machine"
                    : ", but this machine has no such network interface"),
        "it has " + all + "; correct the environment variable or unset it");
  }
  return std::nullopt;
}
std::optional<std::string> SocketInterfaceAddress(bool prefers_ipv6) {
  return SocketInterfaceAddress(OwnVariable, prefers_ipv6);
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
std::optional<PortRange> ReadPortRange() { return ReadPortRange(OwnVariable); }

void CheckNetworkVariables() {
  SocketInterfaceAddress(/*prefers_ipv6=*/false);
  ReadPortRange();
}

}  // namespace lathe
