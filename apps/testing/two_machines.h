// Simulates two machines of two processes each. They are network namespaces that a pair of virtual
// cards connects, if the test may make them, else two addresses of this machine.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {

// Runs a shell command and discards what it prints. Returns its exit code, or -1 if a signal ended
// it.
int Shell(const std::string& command);

class TwoMachines : public LaunchedTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Runs the command in two ranks on each machine, and `meanwhile` at the same time. Returns the
  // exit codes of the launchers. Their output goes to files out.0, err.0 and so on.
  std::vector<int> RunOnBoth(
      const std::vector<std::string>& program, const std::function<void()>& meanwhile = [] {});

  // Returns true if the first machine has reported some steps in out.0.
  bool Trains() const;
  static std::string NameOf(int machine);  // of its network namespace
  pid_t LauncherOf(int machine) const;     // the launcher's process, while RunOnBoth runs

  int num_processes_ = 4;     // of both machines together
  bool has_network_ = false;  // whether there are network namespaces
  // A name to give instead of the first machine's address, if there are namespaces. Its own
  // /etc/hosts maps the name to 127.0.1.1, as Debian's does.
  std::string main_name_;
  std::string main_address_ = "192.168.77.1";  // the first machine's, if there are namespaces
};

}  // namespace lathe
