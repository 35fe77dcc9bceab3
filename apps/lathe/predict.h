// `lathe predict`: labels for lines of text, one JSON object a line.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are those after "predict". Returns the exit code; throws lathe::Error for input that can't
// be used.
int RunPredict(const std::vector<std::string>& args);

}  // namespace lathe
