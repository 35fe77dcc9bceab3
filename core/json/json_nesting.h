// A check of JSON files before they are parsed. Very deep nesting would overflow the stack of any
// code that walks the value. The library takes a NUL for the end, and does not see the rest.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe {

struct JsonFlaw {
  std::string problem, hint;
};
// Returns what is wrong: `the JSON is nested more than 200 levels deep`, or `the JSON has a NUL at
// byte 5`; null if nothing is. What is in strings doesn't count: there the library refuses a NUL
// itself.
std::optional<JsonFlaw> FindJsonFlaw(std::string_view json);

// Throws `where: problem` if FindJsonFlaw finds one.
void CheckJsonNesting(std::string_view json, const std::string& where);

}  // namespace lathe
