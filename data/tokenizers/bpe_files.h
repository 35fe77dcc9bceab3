// Reads a BPE model: from tokenizer.json, or from vocab.json and merges.txt.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

// Makes the model that the `model` of a tokenizer.json describes. Throws InvalidArgument for
// dropout, and for merges that don't fit the vocabulary.
std::unique_ptr<SubwordModel> BpeFromJson(const nlohmann::json& json);

// Makes RoBERTa's model. `vocab` is the contents of vocab.json, an object from tokens to ids.
// `merges` is the text of merges.txt, two symbols a line. The paths of both are for messages.
std::unique_ptr<SubwordModel> BpeFromFiles(const nlohmann::json& vocab,
                                           const std::string& vocab_path, const std::string& merges,
                                           const std::string& merges_path);

}  // namespace lathe
