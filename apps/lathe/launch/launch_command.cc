#include "lathe/apps/lathe/launch/launch_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <iostream>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/launch/launch_flags.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/launch/launch.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Runs PROGRAM in several processes of one job. If one of them fails, the others\n"
    "are ended, and its exit code is returned. SIGINT, SIGTERM and SIGHUP end all.\n"
    "\n"
    "Usage:\n"
    "  lathe launch [options] PROGRAM [ARGS...]\n"
    "\n"
    "If an option is not given, its value comes from the file that `lathe config`\n"
    "writes. Without that file, one process runs on each GPU. Without GPUs, one\n"
    "process uses all cores. The first process reads standard input, unless that is\n"
    "a terminal.\n";

}  // namespace

int RunLaunch(const std::vector<std::string>& args) {
  LaunchFlags flags;
  FlagTable table(kUsage);
  table.StopAtPositional();
  AddLaunchFlags(table, flags);
  const std::string help_text = table.Help();  // before parsing, because it shows the defaults
  std::vector<std::string> command;
  const int usage = ReportErrors(kUsageExitCode, [&] {
    command = table.Parse(args);
    if (!flags.help && command.empty()) {
      throw InvalidArgument("PROGRAM is missing",
                            "usage: lathe launch [options] PROGRAM [ARGS...]");
    }
    if (!command.empty() && command[0].starts_with('-')) {
      throw InvalidArgument("unknown option " + command[0],
                            "options begin with two dashes; --help lists them");
    }
    return 0;
  });
  if (usage != 0) return usage;
  if (flags.help) {
    std::cout << help_text;
    return 0;
  }
  TakeMachineVariables(flags);
  LaunchOptions options = MakeLaunchOptions(flags, FindLaunchConfig(flags));
  // At a terminal neither the check nor the input is needed. srun --pty may start several
  // launchers, but only one runs at the terminal. And a terminal's input reaches only one process
  // group, which is the launcher's.
  if (isatty(STDIN_FILENO) == 0) {
    CheckOneLauncherPerMachine(options.num_machines);
    const int flags_of_input = fcntl(STDIN_FILENO, F_GETFL);  // write-only under nohup
    options.supervisor.pass_input = flags_of_input >= 0 && (flags_of_input & O_ACCMODE) != O_WRONLY;
  }
  return LaunchProgram(command, options);
}

}  // namespace lathe
