#include "lathe/apps/testing/machines.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace lathe {
namespace {

int ExitCode(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : -1;
}

}  // namespace

void Machines::SetUp() {
  LaunchedTest::SetUp();
  network_ = std::make_unique<BridgedMachines>(num_machines_);
  if (!network_->works()) network_ = nullptr;
}

void Machines::TearDown() {
  network_ = nullptr;
  LaunchedTest::TearDown();
}

bool Machines::Trains() const { return Read("out.0").find("step 5/") != std::string::npos; }

std::string Machines::ErrorsOfAll() const {
  std::string errors;
  for (int machine = 0; machine < num_machines_; ++machine)
    errors += Read("err." + std::to_string(machine));
  return errors;
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
    std::string command =
        "echo $$ > " + Path("launcher." + number) + "; exec " +
        (network_ != nullptr ? "ip netns exec " + BridgedMachines::Name(machine) + " " : "");
    std::string address = network_ != nullptr ? main_address_ : "127.0.0.2";
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
