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
// A padded table has surplus rows, because kernels are faster with multiples of a power of two. Its
// size is the tokenizer's, rounded up to a multiple of 8, 16, 32, 64 or 128, with less than 1 % of
// padding. For such a table this returns a note for the user, otherwise "".
//
// A vocab_size that is smaller than the tokenizer's passes here, as in Transformers. The model
// throws later if a text has an id that the table lacks.
std::string CheckVocabularySize(const Tokenizer& tokenizer, const PretrainedConfig& config,
                                const std::string& hint =
                                    "the vocabulary file is cut off or of another model; take it "
                                    "from the model's source again");

}  // namespace lathe
