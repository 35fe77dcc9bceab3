// `lathe evaluate`: evaluates a saved model on a labelled file.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "evaluate". Returns the exit code. Throws lathe::Error for input
// that can't be used.
int RunEvaluate(const std::vector<std::string>& args);

}  // namespace lathe
