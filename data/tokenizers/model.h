// Models: the part of a tokenizer.json that turns words into ids. models/ has their classes.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

// Makes the model that tokenizer.json's `model` describes. Throws InvalidArgument for an unknown
// type.
std::unique_ptr<SubwordModel> SubwordModelFromJson(const nlohmann::json& json);

// Returns the tokens of an object from tokens to ids, in id order. Ids that are missing get the
// empty token. Throws InvalidArgument for an id that makes no sense.
std::vector<std::string> TokensFromVocab(const nlohmann::json& vocab);

// Returns a number of a tokenizer's file that must be whole and in [low, high]. Throws
// InvalidArgument, naming `what`, for another one, and json::exception for another type.
int64_t IntegerFromJson(const nlohmann::json& number, const std::string& what, int64_t low,
                        int64_t high);
// The same for the id of a token, which must be one that makes sense.
int32_t TokenIdFromJson(const nlohmann::json& id, const std::string& token);

// Returns the types of models, as "A or B".
std::string SubwordModelTypes();

}  // namespace lathe
