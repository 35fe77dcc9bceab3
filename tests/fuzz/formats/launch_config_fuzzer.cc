// The YAML file of `lathe launch --config_file`, and what `lathe config` makes of it.
#include <string>

#include "lathe/apps/lathe/launch/launch_config.h"
#include "lathe/core/base/error.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  FormatLaunchConfig(ReadLaunchConfig(ScratchFile("config.yaml", input)));
}
