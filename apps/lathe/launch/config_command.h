// `lathe config`: asks how jobs are to run on this machine and writes Accelerate's
// default_config.yaml, which `lathe launch` reads.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are those after "config". Returns the exit code; throws lathe::Error, with nothing
// written, if the answers end too early or the file is there and is no such configuration.
int RunConfig(const std::vector<std::string>& args);

}  // namespace lathe
