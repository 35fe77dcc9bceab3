#include "lathe/apps/testing/machines.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace lathe {
namespace {

constexpr int kBridge = -1;  // a namespace of its own, which stands for the network's switch

int ExitCode(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : -1;
}

}  // namespace

int Shell(const std::string& command) {
  const int status = std::system(("{ " + command + "; } > /dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void Machines::SetUp() {
  LaunchedTest::SetUp();
  has_network_ = MakeNetwork();
}

void Machines::TearDown() {
  for (int machine = kBridge; machine < num_machines_; ++machine)
    Shell("ip netns del " + NameOf(machine));
  LaunchedTest::TearDown();
}

bool Machines::MakeNetwork() const {
  const std::string bridge = NameOf(kBridge);
  std::string commands = "ip netns add " + bridge + " && ip -n " + bridge +
                         " link add switch type bridge && ip -n " + bridge + " link set switch up";
  // The addresses are above 127.0.0.1. Gloo lets the rank with the higher address connect to the
  // other one. With lower addresses, a rank that wrongly gives the loopback address would be the
  // one that connects, and nobody would notice.
  for (int machine = 0; machine < num_machines_; ++machine) {
    const std::string name = NameOf(machine), number = std::to_string(machine + 1);
    const std::string port = "port" + number;
    commands += " && ip netns add " + name + " && ip link add card netns " + name +
                " type veth peer name " + port + " netns " + bridge + " && ip -n " + name +
                " addr add 192.168.77." + number + "/24 dev card && ip -n " + name +
                " link set card up && ip -n " + name + " link set lo up && ip -n " + bridge +
                " link set " + port + " master switch up";
  }
  return Shell(commands) == 0;
}

bool Machines::Trains() const { return Read("out.0").find("step 5/") != std::string::npos; }

std::string Machines::ErrorsOfAll() const {
  std::string errors;
  for (int machine = 0; machine < num_machines_; ++machine)
    errors += Read("err." + std::to_string(machine));
  return errors;
}

std::string Machines::NameOf(int machine) {
  return "lathe" + std::to_string(getpid()) +
         (machine == kBridge ? "s" : std::string(1, static_cast<char>('a' + machine)));
}

pid_t Machines::LauncherOf(int machine) const {
  return std::stoi(Read("launcher." + std::to_string(machine)));
}

std::vector<int> Machines::RunOnAll(const std::vector<std::string>& program,
                                    const std::function<void()>& meanwhile) {
  std::vector<int> codes(static_cast<size_t>(num_machines_));
  std::vector<std::thread> machines;
  for (int machine = 0; machine < num_machines_; ++machine) {
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
               " --num_machines " + std::to_string(num_machines_) + " --machine_rank " + number +
               " --main_process_ip " + address + " --main_process_port " +
               std::to_string(TestPort());
    for (const std::string& arg : program) command += " '" + arg + "'";
    command += " > " + Path("out." + number) + " 2> " + Path("err." + number);
    machines.emplace_back([command, &code = codes[static_cast<size_t>(machine)]] {
      code = ExitCode(std::system(command.c_str()));
    });
  }
  meanwhile();
  for (std::thread& machine : machines) machine.join();
  return codes;
}

}  // namespace lathe
