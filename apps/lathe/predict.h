// `lathe predict`: predicts labels for lines of text and prints one JSON object a line.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "predict". Returns the exit code. Throws lathe::Error for input
// that can't be used.
int RunPredict(const std::vector<std::string>& args);

}  // namespace lathe
