#include "lathe/distributed/testing/network_testing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace lathe {

bool Shell(const std::string& command) {
  return std::system(
             ("PATH=$PATH:/usr/sbin:/sbin; { " + command + "; } > /dev/null 2>&1").c_str()) == 0;
}

NetworkMachines::NetworkMachines(int num_machines) : num_machines_(num_machines), works_(true) {
  for (int machine = -1; machine < num_machines && works_; ++machine)
    works_ = Shell("ip netns add " + Name(machine));
}

NetworkMachines::~NetworkMachines() {
  for (int machine = -1; machine < num_machines_; ++machine) Shell("ip netns del " + Name(machine));
}

void NetworkMachines::Enter(int machine) {
  const int file = open(("/var/run/netns/" + Name(machine)).c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(setns(file, CLONE_NEWNET), 0);
  close(file);
}

double NetworkMachines::BytesSent() {
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

std::string NetworkMachines::Name(int machine) {
  static const pid_t kTest = getpid();
  return "lathe" + std::to_string(kTest) + (machine < 0 ? "b" : "m" + std::to_string(machine));
}

bool NetworkMachines::StartCard(int machine) {
  const std::string ip = "ip -n " + Name(machine);
  return Shell(ip + " addr add " + Address(machine) + "/24 dev card && " + ip +
               " link set card up && " + ip + " link set lo up");
}

BridgedMachines::BridgedMachines(int num_machines, int64_t bits_per_second)
    : NetworkMachines(num_machines) {
  // The bridge lies in a namespace of its own.
  const std::string ip = "ip -n " + Name(-1);
  works_ = works_ && Shell(ip + " link add bridge type bridge && " + ip + " link set bridge up");
  for (int machine = 0; machine < num_machines && works_; ++machine) {
    const std::string name = Name(machine), port = "port" + std::to_string(machine);
    works_ = Shell("ip link add card netns " + name + " type veth peer name " + port + " netns " +
                   Name(-1)) &&
             StartCard(machine) && Shell(ip + " link set " + port + " master bridge up");
    if (bits_per_second == 0) continue;
    const std::string limit =
        " root tbf rate " + std::to_string(bits_per_second) + "bit burst 128kb latency 100ms";
    works_ = works_ && Shell("tc -n " + name + " qdisc add dev card" + limit) &&
             Shell("tc -n " + Name(-1) + " qdisc add dev " + port + limit);
  }
}

}  // namespace lathe
