// `lathe config`: asks how jobs should run on this machine and writes Accelerate's
// default_config.yaml, which `lathe launch` reads.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "config". Returns the exit code. Throws lathe::Error and writes
// nothing if the answers end too early or the existing file is no such configuration. `default`
// throws if there is a file.
int RunConfig(const std::vector<std::string>& args);

}  // namespace lathe
