// Whether a tokenizer and a model belong together, as far as their sizes tell.
#pragma once

#include <string>

#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/models/config.h"

namespace lathe {

// Throws InvalidArgument, naming both files and sizes, if the config's vocab_size is larger than
// the tokenizer: a vocabulary that is cut off or of another model would train without a word. Only
// a padded table passes, as kernels like even sizes: one that is the tokenizer's size rounded up to
// a multiple of 8, 16, 32, 64 or 128, with less than 1 % of padding. Returns a note for people on
// that, "" where the sizes agree.
//
// A tokenizer larger than the table passes here, as in Transformers: what counts then is whether a
// text has such an id.
std::string CheckVocabularySize(
    const Tokenizer& tokenizer, const PretrainedConfig& config,
    const std::string& hint =
        "the vocabulary file is cut off or of another model; copy it again from where the model "
        "comes from");

}  // namespace lathe
