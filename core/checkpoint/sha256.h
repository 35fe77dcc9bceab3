// SHA-256 (FIPS 180-4) of files and texts, and git's name of a file, by OpenSSL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lathe {

// Return 64 hexadecimal digits.
std::string Sha256(std::string_view bytes);
struct FileDigest {
  int64_t size = 0;
  std::string sha256;
};
// Reads the file piece by piece. Throws as ReadFile does.
FileDigest DigestOfFile(const std::string& path);
// Returns the 40 hexadecimal digits by which git names the file's contents. They are the SHA-1 of
// "blob ", the size in decimal, a zero byte and the contents. Throws as ReadFile does.
std::string GitBlobDigestOfFile(const std::string& path);

}  // namespace lathe
