// Checks a file against the etag that a Hub gives for it.
#pragma once

#include <string>

namespace lathe {

// Returns what the file's etag would be, computed by the same hash as `etag`. 40 hexadecimal digits
// are git's SHA-1 of a blob, and 64 are SHA-256 of the contents. The digits may be of either case:
// for a file that fits, returns `etag` as it is. Any other etag is no hash, and is returned as it
// is, too. Throws as ReadFile does.
std::string DigestInFormOf(const std::string& etag, const std::string& path);

// Returns true if the snapshot's file is a link to a blob whose name is another hash than that of
// its contents. Without a link nothing tells which hash is right, so returns false. Throws as
// ReadFile does.
bool IsDamagedBlob(const std::string& path);

}  // namespace lathe
