// How wide help is, and lines of that width.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>

namespace lathe {

// The widest help. Longer lines are hard to read.
inline constexpr size_t kWidestHelp = 100;

// Returns how many columns a line of help may have: as many as the terminal of `descriptor` has.
// Without one it is what the environment variable COLUMNS says, else 80. It is from 40 to
// kWidestHelp.
size_t HelpWidth(int descriptor = STDOUT_FILENO);

// Joins the words of `text` to lines of at most `width` characters. All lines but the first begin
// with `indent` spaces, and `column` characters stand before the text already. A longer word has a
// line of its own.
std::string WrapText(const std::string& text, size_t width, size_t indent = 0, size_t column = 0);

// Makes lines of at most `width` characters of prose, whose lines don't begin with a space. Other
// lines, such as examples of commands, stay as they are.
std::string WrapProse(const std::string& text, size_t width);

}  // namespace lathe
