// Keeps SentencePiece's training apart, as data/tokenizers/models/sentencepiece_library.h does with
// the library. SentencePiece's header declares absl::string_view itself. So this header includes no
// Abseil and reports errors as std::runtime_error.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// Trains a unigram model (Kudo 2018) of `vocab_size` pieces on `texts`, with ALBERT's special
// tokens as ids 0 to 4: <pad>, <unk>, [CLS], [SEP], [MASK]. Text is put into NFKC and lower case.
// Returns the bytes of the .model file, a function of the arguments alone.
std::string TrainSentencePiece(const std::vector<std::string>& texts, int vocab_size);

}  // namespace lathe
