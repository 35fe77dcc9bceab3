// What a folder's files say of its tokenizer, before any part of it is made: the class, the
// configuration and tokenizer.json. Internal to load_tokenizer.cc.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/data/tokenizers/added_tokens.h"

namespace lathe {

// What Transformers' class of a model type fixes.
struct TokenizerFamily {
  const char* model_type;
  const char* tokenizer_class;
  enum { kWordPiece, kSentencePiece } kind;
  bool token_type_ids;
  const char *cls, *sep, *unk, *pad, *mask;
  bool mask_lstrip = false;
};

extern const char* const kSupportedTokenizers;  // for hints

// By the class's name, with or without "Fast", or by the model type if that is empty; null if there
// is none.
const TokenizerFamily* FindTokenizerFamily(const std::string& tokenizer_class,
                                           const std::string& model_type);

// All that is known before the parts are made.
struct TokenizerSource {
  std::string dir;
  std::map<std::string, std::string> files;
  // tokenizer_config.json over special_tokens_map.json
  nlohmann::json config = nlohmann::json::object();
  nlohmann::json json;  // tokenizer.json, or null
  const TokenizerFamily* family = nullptr;

  std::string Path(const std::string& name) const { return dir + "/" + name; }
  bool Has(const std::string& name) const { return files.contains(name); }
};

// Takes the files apart. Throws InvalidArgument for what is not JSON and for a class that Lathe
// doesn't have.
TokenizerSource ReadTokenizerSource(const std::string& dir,
                                    std::map<std::string, std::string> files,
                                    const std::string& model_type);

// A key of the configuration; null counts as missing.
template <typename T>
T ConfigValue(const nlohmann::json& config, const char* key, T fallback) {
  const auto it = config.find(key);
  return it == config.end() || it->is_null() ? fallback : it->get<T>();
}

// What the configuration says of a key such as "cls_token", a string or an object with flags;
// `fallback` is the token's text where it says nothing.
AddedToken SpecialToken(const TokenizerSource& source, const char* key, const char* fallback);

// An entry of tokenizer.json's added_tokens or of added_tokens_decoder.
AddedToken AddedTokenFromJson(const nlohmann::json& json, int32_t id);

}  // namespace lathe
