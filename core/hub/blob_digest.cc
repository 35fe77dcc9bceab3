#include "lathe/core/hub/blob_digest.h"

#include <absl/strings/ascii.h>

#include <filesystem>
#include <system_error>

#include "lathe/core/checkpoint/sha256.h"

namespace lathe {

std::string DigestInFormOf(const std::string& etag, const std::string& path) {
  const std::string expected = absl::AsciiStrToLower(etag);
  if (expected.find_first_not_of("0123456789abcdef") != std::string::npos) return etag;
  std::string digest;
  if (etag.size() == 64) {
    digest = DigestOfFile(path).sha256;
  } else if (etag.size() == 40) {
    digest = GitBlobDigestOfFile(path);
  } else {
    return etag;
  }
  return digest == expected ? etag : digest;
}

bool IsDamagedBlob(const std::string& path) {
  std::error_code code;
  const std::filesystem::path blob = std::filesystem::read_symlink(path, code);
  if (code) return false;
  const std::string etag = blob.filename().string();
  return DigestInFormOf(etag, path) != etag;
}

}  // namespace lathe
