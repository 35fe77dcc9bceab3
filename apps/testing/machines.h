// Simulates machines of two processes each. They are network namespaces on a bridge, if the test
// may make them, else addresses of this machine.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/distributed/testing/network_testing.h"

namespace lathe {

class Machines : public LaunchedTest {
 protected:
  explicit Machines(int num_machines)
      : num_machines_(num_machines), num_processes_(2 * num_machines) {}
  void SetUp() override;
  void TearDown() override;

  // Runs the command in all ranks, and `meanwhile` at the same time. Returns the exit codes of the
  // launchers; 128 and the signal's number for one that a signal has ended. Their output goes to
  // files out.0, err.0 and so on.
  std::vector<int> RunOnAll(
      const std::vector<std::string>& program, const std::function<void()>& meanwhile = [] {});

  // Returns true if the first machine has reported some steps in out.0.
  bool Trains() const;
  std::string ErrorsOfAll() const;      // what all launchers and ranks have said
  pid_t LauncherOf(int machine) const;  // the launcher's process, while RunOnAll runs

  const int num_machines_;
  int num_processes_;  // of all machines together
  // The network namespaces; null if they can't be made here.
  std::unique_ptr<BridgedMachines> network_;
  // A name to give instead of the first machine's address, if there are namespaces. Its own
  // /etc/hosts maps the name to 127.0.1.1, as Debian's does.
  std::string main_name_;
  // The first machine's address, if there are namespaces.
  std::string main_address_ = BridgedMachines::Address(0);
};

class TwoMachines : public Machines {
 protected:
  TwoMachines() : Machines(2) {}
};

}  // namespace lathe
