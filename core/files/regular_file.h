// Files that a program finds by their names in a folder. Other programs may have put anything
// there. Paths that users give for their data are another matter, since those may be pipes.
#pragma once

#include <string>

namespace lathe {

// Returns the file's bytes, as ReadFile of core/base/file.h does, if the path leads to a regular
// file. Throws InvalidArgument `path: is not a regular file` for a named pipe, a socket or a
// device, which could let a reader wait forever.
std::string ReadRegularFile(const std::string& path);

// Throws that error without opening the file. What isn't there is none.
void CheckRegularFile(const std::string& path);

}  // namespace lathe
