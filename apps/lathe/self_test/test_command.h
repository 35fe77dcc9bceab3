// `lathe test`: checks that this machine, or the configured job, trains correctly.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "test". Returns 0 if all is well. Throws lathe::Error naming what
// failed.
int RunTest(const std::vector<std::string>& args);

}  // namespace lathe
