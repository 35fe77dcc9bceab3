// `lathe test`: whether this machine, or the job that is configured, trains rightly.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are those after "test". Returns 0 if all is well; throws lathe::Error naming what failed.
int RunTest(const std::vector<std::string>& args);

}  // namespace lathe
