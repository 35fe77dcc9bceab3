// Makes a tokenizer from the contents of its files, as LoadTokenizer (tokenizer.h) does after it
// has read them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

// Does the same as LoadTokenizer, but `files` holds the names and contents of the files. `dir`
// appears in messages only.
std::unique_ptr<Tokenizer> TokenizerFromContents(const std::string& dir,
                                                 std::map<std::string, std::string> files,
                                                 const std::string& model_type);

}  // namespace lathe
