// A guard before JSON from files is parsed: what is nested without end overflows the stack of any
// code that walks it.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

// Throws `where: JSON nested more than 200 levels deep`. Brackets in strings don't count.
void CheckJsonNesting(std::string_view json, const std::string& where);

}  // namespace lathe
