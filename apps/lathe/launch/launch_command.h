// `lathe launch`: runs a program in several processes, as `accelerate launch` does.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "launch". Returns the job's exit code. Throws lathe::Error for
// what can't be started.
int RunLaunch(const std::vector<std::string>& args);

}  // namespace lathe
