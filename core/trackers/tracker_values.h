// What trackers share: texts of their values, and the time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lathe {

// Returns the seconds since 1970.
double SecondsSince1970();

// Returns the JSON as text, in one line if `indent` is negative. Bytes that are not UTF-8 become
// U+FFFD, and numbers that are not finite become null.
template <typename Json>
std::string DumpJson(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Returns the text with U+FFFD in the place of bytes that are not UTF-8.
std::string Utf8Text(const std::string& text);

}  // namespace lathe
