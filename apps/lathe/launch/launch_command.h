// `lathe launch`: runs a program in several processes, as `accelerate launch` does.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are those after "launch". Returns the job's exit code; throws lathe::Error for what can't
// be started.
int RunLaunch(const std::vector<std::string>& args);

}  // namespace lathe
