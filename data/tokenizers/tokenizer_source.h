// TokenizerSource: a tokenizer's files as read, before any part of it is made: the class, the
// configuration and tokenizer.json. Internal to load_tokenizer.cc.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/data/tokenizers/added_tokens.h"
#include "lathe/data/tokenizers/tokenizer_family.h"

namespace lathe {

// All that the files say, before the parts are made.
struct TokenizerSource {
  std::string dir;
  std::map<std::string, std::string> files;
  // The keys of tokenizer_config.json. If it has no "added_tokens_decoder", those of
  // special_tokens_map.json replace them: Transformers reads this file and added_tokens.json only
  // then.
  nlohmann::json config = nlohmann::json::object();
  // The tokens of added_tokens.json, by their ids there. Transformers gives a token that isn't in
  // the vocabulary the next free id, whatever the file says, so `id` is not set.
  std::vector<AddedToken> added_tokens = {};
  nlohmann::json tokenizer_json;  // null if there is no such file
  // vocab.json if the family reads it and there is no tokenizer.json.
  nlohmann::json vocab_json;
  const TokenizerFamily* family = nullptr;

  std::string Path(const std::string& name) const { return dir + "/" + name; }
  bool Has(const std::string& name) const { return files.contains(name); }
};

// Parses the files. Throws InvalidArgument if one is not JSON, or if Lathe doesn't support the
// class.
TokenizerSource ReadTokenizerSource(const std::string& dir,
                                    std::map<std::string, std::string> files,
                                    const std::string& model_type);

// Reads a key such as "cls_token" of the configuration, a string or an object with flags. If it is
// missing, the token's text is `fallback`.
AddedToken SpecialToken(const TokenizerSource& source, const char* key, const char* fallback);

// Reads an entry of tokenizer.json's added_tokens or of added_tokens_decoder.
AddedToken AddedTokenFromJson(const nlohmann::json& json, int32_t id);

}  // namespace lathe
