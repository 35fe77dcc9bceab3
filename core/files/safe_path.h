// Paths that come from a file or a server and are appended to a folder's.
#pragma once

#include <string>

namespace lathe {

// Returns true for a relative path that cannot lead out of its folder: no empty part, no "." or
// "..", no backslash and no control character.
bool IsSafePath(const std::string& path);

}  // namespace lathe
