// Joins jobs over IPv6, over a chosen network interface and at chosen ports.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::seconds;

constexpr size_t kElements = 100'000;

bool Shell(const std::string& command) {
  return std::system(("{ " + command + "; } > /dev/null 2>&1").c_str()) == 0;
}

// Joins the job, and checks a sum over TCP.
void JoinAndSum(const ProcessEnvironment& env) {
  const auto group = JoinProcessGroup(PlacedOn(env, false), {.timeout = seconds(20)});
  std::vector<float> data(kElements, static_cast<float>(env.rank + 1));
  group->AllReduce(data);
  const auto n = static_cast<float>(env.world_size);
  EXPECT_EQ(data.front(), n * (n + 1) / 2);
  EXPECT_EQ(data.back(), n * (n + 1) / 2);
}

TEST(Interfaces, TheLoopbackOfIpv6) {
  if (!std::ifstream("/proc/net/if_inet6").good()) GTEST_SKIP() << "no IPv6";
  std::vector<ProcessEnvironment> environments = Environments(3, LocalPort(Listen("::1", 0)));
  for (ProcessEnvironment& env : environments) env.master_addr = "::1";
  ExpectAllWell(RunProcesses(environments, [](const ProcessEnvironment& env) {
    JoinAndSum(env);
    return std::string();
  }));
}

TEST(Interfaces, AWrongNameIsAnErrorThatNamesTheVariable) {
  const auto results = RunRanks(2, [](const ProcessEnvironment& env) {
    setenv("LATHE_SOCKET_IFNAME", "eth99", 1);
    JoinAndSum(env);
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said,
              "LATHE_SOCKET_IFNAME is eth99, but this machine has no such network interface");
  }
}

// Two machines with two ranks each: network namespaces that two pairs of virtual cards connect.
class TwoNamespaces : public testing::Test {
 protected:
  void SetUp() override {
    if (!Shell("ip netns add " + Name(0) + " && ip netns add " + Name(1)))
      GTEST_SKIP() << "no network namespaces can be made here";
    for (const std::string card : {"slow", "fast"}) {
      ASSERT_TRUE(Shell("ip link add " + card + " netns " + Name(0) + " type veth peer name " +
                        card + " netns " + Name(1)));
    }
    for (const int machine : {0, 1}) {
      const std::string ip = "ip -n " + Name(machine) + " ", host = std::to_string(machine + 1);
      ASSERT_TRUE(
          Shell(ip + "link set lo up && " + ip + "link set slow up && " + ip + "link set fast up"));
      ASSERT_TRUE(Shell(ip + "addr add 10.77.0." + host + "/24 dev slow && " + ip +
                        "addr add 10.78.0." + host + "/24 dev fast"));
      ASSERT_TRUE(Shell(ip + "addr add fd77::" + host + "/64 dev slow nodad && " + ip +
                        "addr add fd78::" + host + "/64 dev fast nodad"));
    }
  }
  void TearDown() override {
    for (const int machine : {0, 1}) Shell("ip netns del " + Name(machine));
  }

  static std::string Name(int machine) {
    return "lathe" + std::to_string(getpid()) + "m" + std::to_string(machine);
  }

  // Returns how many bytes the card of this process's namespace has sent.
  static int64_t BytesSent(const std::string& card) {
    int64_t bytes = 0;
    std::ifstream("/sys/class/net/" + card + "/statistics/tx_bytes") >> bytes;
    if (bytes > 0) return bytes;
    std::ifstream table("/proc/thread-self/net/dev");
    for (std::string line; std::getline(table, line);) {
      const size_t colon = line.find(card + ":");
      if (colon == std::string::npos) continue;
      std::istringstream fields(line.substr(colon + card.size() + 1));
      for (int i = 0; i < 9; ++i) fields >> bytes;
    }
    return bytes;
  }

  // Sums up on both machines. Returns what rank 0's machine has sent by each card: "slow fast".
  std::vector<int64_t> Sum(const std::string& master, const std::string& interface) {
    std::vector<ProcessEnvironment> environments = Environments(4, 29577);
    std::vector<std::string> names = {Name(0), Name(1)};
    for (ProcessEnvironment& env : environments) {
      env.master_addr = master;
      env.local_rank = env.rank % 2;
      env.local_world_size = 2;
    }
    const auto results = RunProcesses(environments, [&](const ProcessEnvironment& env) {
      const int fd = open(("/var/run/netns/" + names[env.rank / 2]).c_str(), O_RDONLY | O_CLOEXEC);
      EXPECT_EQ(setns(fd, CLONE_NEWNET), 0);
      close(fd);
      if (!interface.empty()) setenv("LATHE_SOCKET_IFNAME", interface.c_str(), 1);
      JoinAndSum(env);
      return std::to_string(BytesSent("slow")) + " " + std::to_string(BytesSent("fast"));
    });
    ExpectAllWell(results);
    std::istringstream numbers(results[0].said);
    std::vector<int64_t> bytes(2);
    numbers >> bytes[0] >> bytes[1];
    return bytes;
  }
};

constexpr int64_t kMuch = kElements * sizeof(float);

TEST_F(TwoNamespaces, MeetOverIpv6) {
  const std::vector<int64_t> bytes = Sum("fd77::1", "");
  EXPECT_GT(bytes[0], kMuch);
  EXPECT_LT(bytes[1], kMuch / 10);
}

TEST_F(TwoNamespaces, ExchangeGradientsOverTheChosenCard) {
  for (const std::string master : {"10.77.0.1", "fd77::1"}) {
    const std::vector<int64_t> bytes = Sum(master, "fast");
    EXPECT_LT(bytes[0], kMuch / 2) << master;  // what joining takes, and signs of life
    EXPECT_GT(bytes[1], kMuch) << master;
    TearDown();
    SetUp();
  }
}

// Returns the ports of this process's TCP connections that lie in the range, at either end.
std::vector<int> PortsWithin(int first, int last) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    for (const auto get : {getsockname, getpeername}) {
      sockaddr_in address = {};
      socklen_t size = sizeof address;
      if (get(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
      const int port = ntohs(address.sin_port);
      if (address.sin_family == AF_INET && port >= first && port <= last) found.push_back(port);
    }
  }
  return found;
}

TEST(PortRange, OnlyItsPortsAreListenedAt) {
  constexpr int kFirst = 21077, kLast = 21099;  // no system chooses them by itself
  const auto results = RunRanks(3, [](const ProcessEnvironment& env) {
    setenv("LATHE_PORT_RANGE", (std::to_string(kFirst) + "-" + std::to_string(kLast)).c_str(), 1);
    const auto group = JoinProcessGroup(PlacedOn(env, false), {.timeout = seconds(20)});
    group->Barrier();
    // Each connection to another rank has one end in the range.
    EXPECT_EQ(PortsWithin(kFirst, kLast).size(), 2u);
    group->Barrier();
    return std::string();
  });
  ExpectAllWell(results);
}

TEST(PortRange, ThatIsTakenIsNamed) {
  const auto results = RunRanks(3, [](const ProcessEnvironment& env) {
    Socket taken;
    if (env.rank == 1) {
      taken = Listen("127.0.0.1", 21076);
      setenv("LATHE_PORT_RANGE", "21076-21076", 1);
    }
    JoinProcessGroup(PlacedOn(env, false), {.timeout = seconds(20)});
    return std::string();
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank].said,
              "[connecting] rank " + std::to_string(rank) +
                  " can't go on: rank 1: all ports from 21076 to 21076 are taken; give a wider "
                  "range: each process of a machine listens at one of its ports");
    EXPECT_LT(results[rank].seconds, 15);
  }
}

}  // namespace
}  // namespace lathe
