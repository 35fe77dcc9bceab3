// The second half of LoadTokenizer, for files that are not on disk.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

// Does the same as LoadTokenizer, with files given by name and contents. `dir` appears in messages
// only.
std::unique_ptr<Tokenizer> TokenizerFromFiles(const std::string& dir,
                                              std::map<std::string, std::string> files,
                                              const std::string& model_type);

}  // namespace lathe
