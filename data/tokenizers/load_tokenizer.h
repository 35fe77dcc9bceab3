// LoadTokenizer's second half, for files that are not on disk.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

// As LoadTokenizer, from file names and contents. `dir` is only for messages.
std::unique_ptr<Tokenizer> TokenizerFromFiles(const std::string& dir,
                                              std::map<std::string, std::string> files,
                                              const std::string& model_type);

}  // namespace lathe
