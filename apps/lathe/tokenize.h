// `lathe tokenize`: shows what a tokenizer makes of texts, one JSON object a line.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `args` are the arguments after "tokenize". Returns the exit code. Throws lathe::Error for input
// that can't be used.
int RunTokenize(const std::vector<std::string>& args);

}  // namespace lathe
