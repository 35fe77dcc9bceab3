// Tells by their sizes whether a tokenizer and a model belong together.
#pragma once

#include <string>

#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/models/config/config.h"

namespace lathe {

// Throws InvalidArgument, naming both files and sizes, if the config's vocab_size is larger than
// the tokenizer's, unless the table of embeddings is padded. Otherwise a model would train silently
// with a vocabulary that is cut off or of another model.
//
// A padded table has surplus rows, less than 1 % of it. They make room for more tokens, as in
// DeBERTa-v3 (128,100 rows for 128,001 tokens). Or they round the size up to a multiple of a power
// of two, with which kernels are faster. For such a table this returns a note for the user,
// otherwise
// "". A vocab.txt may be cut off at the end of a line. So its table must be rounded up, to a
// multiple of 8, 16, 32, 64 or 128.
//
// A vocab_size that is smaller than the tokenizer's passes here, as in Transformers. The model
// throws later if a text has an id that the table lacks.
std::string CheckVocabularySize(const Tokenizer& tokenizer, const PretrainedConfig& config,
                                const std::string& hint =
                                    "the vocabulary file is cut off or of another model; take it "
                                    "from the model's source again");

}  // namespace lathe
