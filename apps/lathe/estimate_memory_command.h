// `lathe estimate-memory`: prints the memory that training and using a model take.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "estimate-memory". Returns the exit code.
int RunEstimateMemory(const std::vector<std::string>& args);

}  // namespace lathe
