// Git LFS keeps large files outside of a repository. A clone without it has small texts in their
// place, which say where the contents are.
#pragma once

#include <string>

namespace lathe {

// Throws InvalidArgument if the file of weights, or their index, is only such a text. Does nothing
// for a file that is missing or can't be read: its reader tells that.
void CheckIsNoLfsPointer(const std::string& file);

}  // namespace lathe
