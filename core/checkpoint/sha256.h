// SHA-256 (FIPS 180-4) of files and texts, by OpenSSL.
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

}  // namespace lathe
