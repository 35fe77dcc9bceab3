// Pre-tokenizers: the part of a tokenizer.json that cuts a normalized text into words.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace lathe {

using EmitWord = std::function<void(std::string_view)>;
// Cuts a normalized text into words and emits them. It may rewrite words and emits no empty ones.
// `at_start` is true if the text begins with what stands for the first character of the caller's
// whole text.
using PreTokenizer =
    std::function<void(std::string_view text, bool at_start, const EmitWord& emit)>;

// Makes the pre-tokenizer that tokenizer.json's `pre_tokenizer` describes; null emits the text as
// it is. Throws InvalidArgument for an unknown type.
PreTokenizer PreTokenizerFromJson(const nlohmann::json& json);

}  // namespace lathe
