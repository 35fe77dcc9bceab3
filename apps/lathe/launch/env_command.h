// `lathe env`: prints what a bug report should say about the machine and the set-up.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "env". Returns the exit code.
int RunEnv(const std::vector<std::string>& args);

}  // namespace lathe
