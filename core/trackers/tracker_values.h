// What trackers share: texts of their values, and the time.
#pragma once

#include <string>

namespace lathe {

// Returns the seconds since 1970.
double SecondsSince1970();

// Returns the text with U+FFFD in the place of bytes that are not UTF-8.
std::string Utf8Text(const std::string& text);

}  // namespace lathe
