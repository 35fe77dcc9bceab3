#include "lathe/apps/testing/two_machines.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace lathe {

int Shell(const std::string& command) {
  const int status = std::system(("{ " + command + "; } > /dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void TwoMachines::SetUp() {
  LaunchedTest::SetUp();
  const std::string a = NameOf(0), b = NameOf(1);
  // The addresses are above 127.0.0.1. Gloo lets the rank with the higher address connect to the
  // other one. With lower addresses, a rank that wrongly gives the loopback address would be the
  // one that connects, and nobody would notice.
  has_network_ = Shell("ip netns add " + a + " && ip netns add " + b +
                       " && ip link add card netns " + a + " type veth peer name card netns " + b +
                       " && ip -n " + a + " addr add 192.168.77.1/24 dev card && ip -n " + b +
                       " addr add 192.168.77.2/24 dev card && ip -n " + a +
                       " link set card up && ip -n " + a + " link set lo up && ip -n " + b +
                       " link set card up && ip -n " + b + " link set lo up") == 0;
}

void TwoMachines::TearDown() {
  for (const int machine : {0, 1}) Shell("ip netns del " + NameOf(machine));
  LaunchedTest::TearDown();
}

bool TwoMachines::Trains() const { return Read("out.0").find("step 5/") != std::string::npos; }

std::string TwoMachines::NameOf(int machine) {
  return "lathe" + std::to_string(getpid()) + (machine == 0 ? "a" : "b");
}

pid_t TwoMachines::LauncherOf(int machine) const {
  return std::stoi(Read("launcher." + std::to_string(machine)));
}

std::vector<int> TwoMachines::RunOnBoth(const std::vector<std::string>& program,
                                        const std::function<void()>& meanwhile) {
  std::vector<int> codes(2);
  std::vector<std::thread> machines;
  for (int machine = 0; machine < 2; ++machine) {
    const std::string number = std::to_string(machine);
    std::string command = "echo $$ > " + Path("launcher." + number) + "; exec " +
                          (has_network_ ? "ip netns exec " + NameOf(machine) + " " : "");
    std::string address = has_network_ ? main_address_ : "127.0.0.2";
    if (!main_name_.empty()) {
      Write("hosts." + number, "127.0.0.1 localhost\n" + (machine == 0 ? "127.0.1.1" : address) +
                                   " " + main_name_ + "\n");
      address = main_name_;
      command +=
          "sh -c 'mount --bind \"$0\" /etc/hosts && exec \"$@\"' " + Path("hosts." + number) + " ";
    }
    command += "apps/lathe/lathe launch --cpu --num_processes " + std::to_string(num_processes_) +
               " --num_machines 2 --machine_rank " + number + " --main_process_ip " + address +
               " --main_process_port " + std::to_string(TestPort());
    for (const std::string& arg : program) command += " '" + arg + "'";
    command += " > " + Path("out." + number) + " 2> " + Path("err." + number);
    machines.emplace_back([command, &code = codes[static_cast<size_t>(machine)]] {
      const int status = std::system(command.c_str());
      code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    });
  }
  meanwhile();
  for (std::thread& machine : machines) machine.join();
  return codes;
}

}  // namespace lathe
