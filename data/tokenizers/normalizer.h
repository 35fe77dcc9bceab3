// Normalizers and pre-tokenizers: the parts of a tokenizer.json that come before its model.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Rewrites a text. Thread-safe.
using Normalizer = std::function<std::string(std::string)>;

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  std::optional<bool> strip_accents;  // not set: the same as `lowercase`
  bool lowercase = true;
};
Normalizer MakeBertNormalizer(const BertNormalizerOptions& options);

// Applies `parts` in order.
Normalizer MakeSequence(std::vector<Normalizer> parts);
Normalizer MakeReplace(std::string pattern, std::string content);
// Removes every combining mark (categories M*), and thus the accents of text that is in NFD or
// NFKD.
std::string StripAccents(std::string text);
std::string StripWhitespace(std::string_view text, bool left, bool right);

// Makes the normalizer that tokenizer.json's `normalizer` describes; null gives the identity.
// Throws InvalidArgument for an unknown type.
Normalizer NormalizerFromJson(const nlohmann::json& json);

using EmitWord = std::function<void(std::string_view)>;
// Cuts a normalized text into words and emits them. It may rewrite words and emits no empty ones.
using PreTokenizer = std::function<void(std::string_view, const EmitWord&)>;

// Splits at white space and makes each punctuation character a word of its own.
void BertPreTokenize(std::string_view text, const EmitWord& emit);

// Makes the pre-tokenizer that tokenizer.json's `pre_tokenizer` describes; null emits the text as
// it is. Throws InvalidArgument for an unknown type.
PreTokenizer PreTokenizerFromJson(const nlohmann::json& json);

}  // namespace lathe
