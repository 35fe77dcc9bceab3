// Cells that name the rows and columns of the page's tables.
#pragma once

#include <string>

namespace lathe {

enum class HeadingOf { kColumn, kRow };

// Returns a cell with the name. A long name is cut in its middle, since it would leave no room for
// the table beside it or below it. Then a pointer that rests on the cell shows the whole name, and
// a screen reader reads it.
std::string Heading(HeadingOf what, const std::string& name);

}  // namespace lathe
