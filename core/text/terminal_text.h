// Text from files and servers, as a terminal may show it.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

// Returns the text as a terminal may show it: a control character, also one of C1, and a byte that
// is no UTF-8 becomes "\x1b". Line breaks and tabs stay. Files and servers may send any bytes.
std::string TerminalText(std::string_view text);

}  // namespace lathe
