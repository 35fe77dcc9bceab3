// A check of JSON files before they are parsed: very deep nesting would overflow the stack of any
// code that walks the value.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

// Throws `where: the JSON is nested more than 200 levels deep`. Brackets in strings don't count.
void CheckJsonNesting(std::string_view json, const std::string& where);

}  // namespace lathe
