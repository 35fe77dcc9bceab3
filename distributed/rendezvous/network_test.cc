#include "lathe/distributed/rendezvous/network.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "lathe/distributed/rendezvous/store_testing.h"

namespace lathe {
namespace {

using Variables = std::map<std::string, std::string>;

GetVariable Getter(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::optional<std::string> Address(const Variables& variables, bool prefers_ipv6 = false) {
  return SocketInterfaceAddress(prefers_ipv6, Getter(variables));
}

TEST(SocketInterface, GivesAnAddress) {
  EXPECT_EQ(Address({}), std::nullopt);
  EXPECT_EQ(Address({{"LATHE_SOCKET_IFNAME", "lo"}}), "127.0.0.1");
  EXPECT_EQ(Address({{"GLOO_SOCKET_IFNAME", "lo"}}), "127.0.0.1");
  EXPECT_EQ(Address({{"LATHE_SOCKET_IFNAME", "lo"}, {"GLOO_SOCKET_IFNAME", "nope"}}), "127.0.0.1");
  EXPECT_EQ(Address({{"LATHE_SOCKET_IFNAME", "nope,lo"}}), "127.0.0.1");
  const auto ipv6 = Address({{"LATHE_SOCKET_IFNAME", "lo"}}, true);
  EXPECT_TRUE(ipv6 == "::1" || ipv6 == "127.0.0.1") << *ipv6;  // a machine may have no IPv6
}

TEST(SocketInterface, Mistakes) {
  for (const char* variable : {"LATHE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    EXPECT_EQ(MessageOf(
                  [&] {
                    Address({{variable, "eth99"}});
                  },
                  absl::StatusCode::kInvalidArgument),
              std::string(variable) + " is eth99, but this machine has no such network interface");
  }
}

TEST(PortRange, IsTwoPorts) {
  EXPECT_FALSE(ReadPortRange(Getter({})).has_value());
  const auto range = ReadPortRange(Getter({{"LATHE_PORT_RANGE", "20000-20100"}}));
  EXPECT_EQ(range->first, 20000);
  EXPECT_EQ(range->last, 20100);
  EXPECT_EQ(range->size(), 101);
  EXPECT_EQ(ParsePortRange("--port_range", "7-7").size(), 1);
  for (const char* wrong :
       {"", "20000", "20000-", "-20000", "2-1", "0-5", "1-65536", "a-b", "1-2x", "1:2", "1-2-3"}) {
    EXPECT_EQ(MessageOf([&] { ParsePortRange("--port_range", wrong); },
                        absl::StatusCode::kInvalidArgument),
              std::string("--port_range must be two ports from 1 to 65535 such as 20000-20100 but "
                          "is \"") +
                  wrong + "\"");
  }
}

}  // namespace
}  // namespace lathe
