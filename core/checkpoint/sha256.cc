#include "lathe/core/checkpoint/sha256.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/libraries.h"

namespace lathe {
namespace {

class Hasher {
 public:
  Hasher() : context_(Crypto().EVP_MD_CTX_new(), Crypto().EVP_MD_CTX_free) {
    Require(context_ != nullptr &&
            Crypto().EVP_DigestInit_ex(context_.get(), Crypto().EVP_sha256(), nullptr) == 1);
  }
  void Add(const void* data, size_t size) {
    Require(Crypto().EVP_DigestUpdate(context_.get(), data, size) == 1);
  }
  std::string Finish() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    Require(Crypto().EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += kDigits[digest[i] >> 4];
      text += kDigits[digest[i] & 15];
    }
    return text;
  }

 private:
  static void Require(bool ok) {
    if (!ok) throw Error(absl::StatusCode::kInternal, "OpenSSL can't compute SHA-256 here");
  }
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace

std::string Sha256(std::string_view bytes) {
  Hasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  return hasher.Finish();
}

FileDigest DigestOfFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw FileError(path, errno);
  const std::unique_ptr<const int, void (*)(const int*)> closer(&fd,
                                                                [](const int* f) { close(*f); });
  std::vector<char> piece(size_t{1} << 20);
  Hasher hasher;
  FileDigest digest;
  for (;;) {
    const ssize_t got = read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path, errno);
    if (got == 0) break;
    hasher.Add(piece.data(), static_cast<size_t>(got));
    digest.size += got;
  }
  digest.sha256 = hasher.Finish();
  return digest;
}

}  // namespace lathe
