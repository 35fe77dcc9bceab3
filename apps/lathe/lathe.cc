// The `lathe` program, with a sub-command for each everyday task.
#include <signal.h>

#include <iostream>
#include <string>
#include <vector>

#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/cli/restart_with_short_spin.h"
#include "lathe/apps/lathe/estimate_memory_command.h"
#include "lathe/apps/lathe/evaluate.h"
#include "lathe/apps/lathe/hub_commands.h"
#include "lathe/apps/lathe/launch/config_command.h"
#include "lathe/apps/lathe/launch/env_command.h"
#include "lathe/apps/lathe/launch/launch_command.h"
#include "lathe/apps/lathe/predict.h"
#include "lathe/apps/lathe/self_test/test_command.h"
#include "lathe/apps/lathe/tokenize.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/nearest_name.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Usage: lathe COMMAND [options]\n"
    "\n"
    "Commands:\n"
    "  predict          predicts labels of texts with a model that finetune saved\n"
    "  evaluate         evaluates such a model on a file with labels\n"
    "  launch           runs a program in several processes, on one machine or several\n"
    "  config           asks for the defaults of launch and saves them\n"
    "  test             checks that training on several processes or GPUs works here\n"
    "  env              describes this machine and its set-up, for bug reports\n"
    "  estimate-memory  estimates the memory that training and using a model take\n"
    "  tokenize         prints the ids and tokens of lines of text\n"
    "  download         fetches models from the Hub\n"
    "  cache            lists and deletes models that were fetched\n"
    "\n"
    "`lathe COMMAND --help` describes a command. `finetune --help` says how to train.\n";

struct Command {
  const char* name;
  int (*run)(const std::vector<std::string>& args);
};

constexpr Command kCommands[] = {{"predict", RunPredict},
                                 {"evaluate", RunEvaluate},
                                 {"launch", RunLaunch},
                                 {"config", RunConfig},
                                 {"test", RunTest},
                                 {"env", RunEnv},
                                 {"estimate-memory", RunEstimateMemory},
                                 {"tokenize", RunTokenize},
                                 {"download", RunDownload},
                                 {"cache", RunCache}};

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  lathe::NameOptionsAsFlags();
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    std::cerr << lathe::kUsage;
    return lathe::kUsageExitCode;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    return lathe::ReportErrors(lathe::kErrorExitCode, [] {
      std::cout << lathe::kUsage;
      return 0;
    });
  }
  std::vector<std::string> names = {"help"};
  for (const lathe::Command& command : lathe::kCommands) {
    names.push_back(command.name);
    if (args[0] != command.name) continue;
    if (args[0] == "predict" || args[0] == "evaluate") lathe::RestartWithShortSpin(argv);
    return lathe::ReportErrors(lathe::kErrorExitCode, [&] {
      return command.run({args.begin() + 1, args.end()});
    });
  }
  return lathe::ReportErrors(lathe::kUsageExitCode, [&]() -> int {
    const auto nearest = lathe::NearestName(args[0], names);
    throw lathe::InvalidArgument(
        "unknown command \"" + args[0] + "\"",
        nearest ? "did you mean " + *nearest + "?" : "lathe --help lists the commands");
  });
}
