// Tokenizer families: what Transformers' tokenizer class of a model type fixes. All of them are in
// the one table of tokenizer_family.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lathe/data/tokenizers/models/sentencepiece_model.h"
#include "lathe/data/tokenizers/pipeline_tokenizer.h"

namespace lathe {

struct TokenizerFamily {
  const char* model_type;
  const char* tokenizer_class;
  enum { kWordPiece, kSentencePiece, kByteLevelBpe } kind;
  bool token_type_ids;
  const char *cls, *sep, *unk, *pad, *mask;
  // Returns the normalizer, as tokenizer.json would describe it. `config` has the keys of
  // tokenizer_config.json.
  nlohmann::json (*normalizer)(const nlohmann::json& config);
  // The templates, given the ids of `cls` and `sep`.
  PipelineTokenizer::Templates (*templates)(int32_t cls, int32_t sep);
  bool mask_lstrip = false;         // the mask token takes the white space on its left
  SentencePieceIdMapping ids = {};  // for kSentencePiece
};

// Finds a family by the name of its class, with or without "Fast". If that is empty, finds it by
// the model type. Returns null if there is none.
const TokenizerFamily* FindTokenizerFamily(const std::string& tokenizer_class,
                                           const std::string& model_type);

// Returns a hint that lists the families and the models of tokenizer.json that are supported.
std::string SupportedTokenizers();

// Returns the value of a key of the configuration, or `fallback` if it is missing or null.
template <typename T>
T ConfigValue(const nlohmann::json& config, const char* key, T fallback) {
  const auto it = config.find(key);
  return it == config.end() || it->is_null() ? fallback : it->get<T>();
}

// Returns the normalizer steps that ALBERT's tokenizer takes before SentencePiece's own character
// map.
nlohmann::json AlbertNormalizers(bool do_lower_case, bool keep_accents);

}  // namespace lathe
