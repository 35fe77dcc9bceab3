// The `lathe` program: one sub-command for each everyday task.
#include <iostream>
#include <string>
#include <vector>

#include "lathe/apps/flags.h"
#include "lathe/apps/predict.h"
#include "lathe/apps/report_error.h"
#include "lathe/core/error.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Usage: lathe COMMAND [options]\n"
    "\n"
    "Commands:\n"
    "  predict   labels for lines of text, from a model that finetune saved\n"
    "\n"
    "lathe COMMAND --help tells more. To train, see finetune --help.\n";

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
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
  if (args[0] == "predict") {
    return lathe::ReportErrors(lathe::kErrorExitCode, [&] {
      return lathe::RunPredict({args.begin() + 1, args.end()});
    });
  }
  return lathe::ReportErrors(lathe::kUsageExitCode, [&]() -> int {
    const auto nearest = lathe::NearestName(args[0], {"predict", "help"});
    throw lathe::InvalidArgument(
        "unknown command \"" + args[0] + "\"",
        nearest ? "did you mean " + *nearest + "?" : "lathe --help lists the commands");
  });
}
