// Byte fallback: tokens such as <0xE2> stand for the bytes of characters that a model doesn't know.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

// Returns the ids of <0x00> to <0xFF>; -1 for one that the vocabulary lacks.
std::vector<int32_t> ByteTokenIds(const Vocabulary& vocabulary);

// Appends the ids of the bytes of `text`. Returns false, and appends nothing, if one is missing.
bool AppendByteTokens(const std::vector<int32_t>& byte_ids, std::string_view text,
                      std::vector<int32_t>* ids);

}  // namespace lathe
