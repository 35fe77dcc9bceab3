// Tokenizer families: what Transformers' tokenizer class of a model type fixes. A model's family
// declares the one that it brings (models/architecture.h). tokenizer_family.cc has those of
// "albert", "bert" and "roberta". Lathe also takes them if only the names of the files tell the
// family.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lathe/data/tokenizers/models/sentencepiece_model.h"
#include "lathe/data/tokenizers/pipeline_tokenizer.h"
#include "lathe/data/tokenizers/post_processor.h"

namespace lathe {

// Returns the normalizer of BERT's tokenizer, as tokenizer.json would describe it. `config` has the
// keys of tokenizer_config.json, here and below.
nlohmann::json BertNormalizer(const nlohmann::json& config);

// Returns a normalizer that makes text lowercase if `config` says so, else null.
nlohmann::json LowercaseIfConfigured(const nlohmann::json& config);

// The defaults are those of BERT's tokenizer, but for the token types.
struct TokenizerFamily {
  enum Kind { kWordPiece, kSentencePiece, kByteLevelBpe };

  std::string model_type = {};  // RegisterArchitecture fills it in
  std::string tokenizer_class = {};
  Kind kind = kWordPiece;
  bool token_type_ids = false;
  const char* cls = "[CLS]";
  const char* sep = "[SEP]";
  const char* unk = "[UNK]";
  const char* pad = "[PAD]";
  const char* mask = "[MASK]";
  // Returns the normalizer, as tokenizer.json would describe it, or null.
  nlohmann::json (*normalizer)(const nlohmann::json& config) = BertNormalizer;
  // The templates, given the ids of `cls` and `sep`.
  PipelineTokenizer::Templates (*templates)(int32_t cls, int32_t sep) = BertTemplates;
  bool mask_lstrip = false;         // the mask token takes the white space on its left
  SentencePieceIdMapping ids = {};  // for kSentencePiece
};

// Adds a family, and keeps it until the program ends. Call it before other threads look families
// up. Throws if the model_type or the class is empty or taken.
void RegisterTokenizerFamily(TokenizerFamily family);

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
