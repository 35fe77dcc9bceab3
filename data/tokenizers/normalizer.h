// Normalizers: the part of a tokenizer.json that rewrites a text before it is cut into words.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace lathe {

// Rewrites a text. Thread-safe.
using Normalizer = std::function<std::string(std::string)>;

// Makes the normalizer that tokenizer.json's `normalizer` describes; null gives the identity.
// Throws InvalidArgument for an unknown type.
Normalizer NormalizerFromJson(const nlohmann::json& json);

}  // namespace lathe
