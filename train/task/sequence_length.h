// Compares --max_seq_length with the number of the tokenizer's special tokens.
#pragma once

#include <cstdint>

#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

// Throws UsageError unless texts (or pairs) that are cut to `max_seq_length` keep at least one
// token each beside the special ones. 0 means no limit.
void CheckMaxSeqLength(const Tokenizer& tokenizer, bool pairs, int64_t max_seq_length);

}  // namespace lathe
