// Tests the collectives between machines that are network namespaces on a bridge. Each has a link
// of limited bandwidth. Needs the right to make them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBytesPerSecond = 50e6;

bool Shell(const std::string& command) {
  return std::system(
             ("PATH=$PATH:/usr/sbin:/sbin; { " + command + "; } > /dev/null 2>&1").c_str()) == 0;
}

// Machines that talk over links of kBytesPerSecond each way.
class Network {
 public:
  explicit Network(int num_machines) : num_machines_(num_machines) {
    // The bridge lies in a namespace of its own.
    works_ = Shell("ip netns add " + Name(-1)) &&
             Shell("ip -n " + Name(-1) + " link add bridge type bridge && ip -n " + Name(-1) +
                   " link set bridge up");
    for (int machine = 0; machine < num_machines && works_; ++machine) {
      const std::string name = Name(machine), port = "port" + std::to_string(machine);
      const std::string limit = " root tbf rate 400mbit burst 128kb latency 100ms";
      works_ = Shell("ip netns add " + name) &&
               Shell("ip link add card netns " + name + " type veth peer name " + port + " netns " +
                     Name(-1)) &&
               Shell("ip -n " + name + " addr add " + Address(machine) + "/24 dev card && ip -n " +
                     name + " link set card up && ip -n " + name + " link set lo up && ip -n " +
                     Name(-1) + " link set " + port + " master bridge up") &&
               Shell("tc -n " + name + " qdisc add dev card" + limit) &&
               Shell("tc -n " + Name(-1) + " qdisc add dev " + port + limit);
    }
  }
  ~Network() {
    for (int machine = -1; machine < num_machines_; ++machine)
      Shell("ip netns del " + Name(machine));
  }
  bool works() const { return works_; }
  static std::string Address(int machine) { return "192.168.78." + std::to_string(machine + 1); }
  // Moves this process to the machine.
  static void Enter(int machine) {
    const int file = open(("/var/run/netns/" + Name(machine)).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(setns(file, CLONE_NEWNET), 0);
    close(file);
  }
  // Returns the bytes that this process's machine has sent.
  static double BytesSent() {
    std::ifstream devices("/proc/self/net/dev");
    for (std::string line; std::getline(devices, line);) {
      std::istringstream words(line);
      std::string name;
      double word = 0;
      words >> name;
      for (int i = 0; name == "card:" && i < 9; ++i) words >> word;
      if (name == "card:") return word;
    }
    return 0;
  }

 private:
  static std::string Name(int machine) {
    static const pid_t kTest = getpid();
    return "lathe" + std::to_string(kTest) + (machine < 0 ? "b" : "m" + std::to_string(machine));
  }
  const int num_machines_;
  bool works_ = false;
};

class OnLinks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, OnLinks,
                         testing::Values(std::vector<int>{1, 1}, std::vector<int>{2, 2},
                                         std::vector<int>{1, 1, 1, 1}, std::vector<int>{2, 2, 2, 2},
                                         std::vector<int>{1, 1, 1, 1, 1, 1}),
                         [](const auto& each) {
                           return std::to_string(each.param.size()) + "MachinesOf" +
                                  std::to_string(each.param[0]);
                         });

// The links carry what a machine must send and little more, and are busy for most of the time.
TEST_P(OnLinks, AnAllReduceTakesTheTimeOfItsBytes) {
  const std::vector<int> machines = GetParam();
  const int num_machines = static_cast<int>(machines.size());
  const Network network(num_machines);
  if (!network.works()) GTEST_SKIP() << "no network namespaces can be made here";
  const int port = FreePort();
  const std::vector<ProcessEnvironment> environments =
      Environments(std::accumulate(machines.begin(), machines.end(), 0), port);
  const auto results = RunProcesses(environments, [&](ProcessEnvironment env) {
    env = PlacedOn(env, machines);
    env.master_addr = Network::Address(0);
    Network::Enter(env.rank / machines[0]);
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(30)});
    std::vector<float> data(25'000'000);
    double seconds = 1e9, bytes = 0;
    for (int trial = 0; trial < 3; ++trial) {  // other work may keep the machine busy
      std::ranges::fill(data, static_cast<float>(env.rank));
      group->Barrier();
      const double before = Network::BytesSent();
      const Clock::time_point start = Clock::now();
      group->AllReduce(data);
      group->Barrier();
      seconds = std::min(seconds, std::chrono::duration<double>(Clock::now() - start).count());
      bytes = Network::BytesSent() - before;
    }
    const int n = group->size();
    EXPECT_EQ(std::ranges::count(data, static_cast<float>(n * (n - 1) / 2)), std::ssize(data));
    std::ostringstream out;
    out << seconds << ' ' << bytes;
    return out.str();
  });
  ExpectAllWell(results);
  double seconds = 0, bytes = 0;
  std::istringstream(results[0].said) >> seconds >> bytes;
  const double least = 2 * 100e6 * (1 - 1.0 / num_machines);
  std::cout << num_machines << " machines of " << machines[0] << ": " << seconds << " s, "
            << bytes / 1e6 << " MB sent of " << least / 1e6 << " MB, "
            << 100 * least / kBytesPerSecond / seconds << " % of the link\n";
  EXPECT_GT(bytes, least);
  EXPECT_LT(bytes, 1.06 * least);  // with the headers of packets
  EXPECT_LT(seconds, 1.3 * least / kBytesPerSecond);
}

}  // namespace
}  // namespace lathe
