// JSON as text, and back. The JSON library's own parse() and dump() take seconds to compile in each
// source that calls them. So Lathe's libraries call these, unless they look at each event of the
// parser, or refuse a text that is not UTF-8.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lathe {

// Returns the value of the text. Throws as nlohmann::json::parse() does.
nlohmann::json ParseJson(std::string_view text);

// Returns the value of the text, or a value whose is_discarded() is true if the text is not JSON.
nlohmann::json ParseJsonOrDiscard(std::string_view text);

// Returns the value as text, in one line if `indent` is negative. Bytes that are not UTF-8 become
// U+FFFD, and numbers that are not finite become null. With `ensure_ascii` all characters beyond
// ASCII are written as \uXXXX.
std::string DumpJson(const nlohmann::json& value, int indent = -1, bool ensure_ascii = false);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace lathe
