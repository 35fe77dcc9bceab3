// Texts and numbers as YAML scalars.
#pragma once

#include <string>

namespace lathe {

// Returns a scalar that YAML 1.1 and 1.2 read back as the same text. It is the text itself if no
// reader could take it for anything else, else the text in double quotes. Bytes that are not UTF-8
// become U+FFFD.
std::string YamlText(const std::string& text);

// Returns the shortest text that reads back as the same finite number. In YAML 1.1 "1e-05" is a
// text, so this writes "1.0e-05".
std::string YamlNumber(double number);

}  // namespace lathe
