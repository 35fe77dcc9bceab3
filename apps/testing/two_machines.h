// Two machines of two processes each: network namespaces that a pair of virtual cards connects,
// where the test may make them, else two addresses of this machine.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {

// The exit code of a command of the shell's, -1 if a signal ended it. What it prints goes nowhere.
int Shell(const std::string& command);

class TwoMachines : public LaunchedTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Runs the command in two ranks on each machine and returns the launchers' exit codes; what they
  // print goes to files out.0, err.0 and so on. `meanwhile` runs beside them.
  std::vector<int> RunOnBoth(
      const std::vector<std::string>& program, const std::function<void()>& meanwhile = [] {});

  // Whether the first machine has told of some steps in out.0.
  bool Trains() const;
  static std::string NameOf(int machine);  // of its namespace
  pid_t LauncherOf(int machine) const;     // its process, while RunOnBoth runs

  bool has_network_ = false;  // namespaces
  // The first machine's name instead of its address, for namespaces: its own /etc/hosts says
  // 127.0.1.1 of it, as Debian's does.
  std::string main_name_;
};

}  // namespace lathe
