// What the fuzzers of a tokenizer's files do with a tokenizer that was made.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe::fuzz {

// Makes a tokenizer from these files, encodes a few texts with it, and looks up some ids.
void MakeAndUseTokenizer(std::map<std::string, std::string> files, const std::string& model_type);
void UseTokenizer(const Tokenizer& tokenizer);

}  // namespace lathe::fuzz
