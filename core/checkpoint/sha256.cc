#include "lathe/core/checkpoint/sha256.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <sys/stat.h>
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
  explicit Hasher(const EVP_MD* kind)
      : context_(Crypto().EVP_MD_CTX_new(), Crypto().EVP_MD_CTX_free) {
    Require(context_ != nullptr && Crypto().EVP_DigestInit_ex(context_.get(), kind, nullptr) == 1);
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
    if (!ok)
      throw Error(absl::StatusCode::kInternal, "OpenSSL can't compute SHA-256 or SHA-1 here");
  }
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

// Adds the whole file, piece by piece. Returns its size.
int64_t AddFile(int fd, const std::string& path, Hasher& hasher) {
  std::vector<char> piece(size_t{1} << 17);
  int64_t size = 0;
  for (;;) {
    const ssize_t got = read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path, errno);
    if (got == 0) return size;
    hasher.Add(piece.data(), static_cast<size_t>(got));
    size += got;
  }
}

class OpenedFile {
 public:
  explicit OpenedFile(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw FileError(path, errno);
  }
  ~OpenedFile() { close(fd_); }
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string Sha256(std::string_view bytes) {
  Hasher hasher(Crypto().EVP_sha256());
  hasher.Add(bytes.data(), bytes.size());
  return hasher.Finish();
}

FileDigest DigestOfFile(const std::string& path) {
  const OpenedFile file(path);
  Hasher hasher(Crypto().EVP_sha256());
  FileDigest digest;
  digest.size = AddFile(file.fd(), path, hasher);
  digest.sha256 = hasher.Finish();
  return digest;
}

std::string GitBlobDigestOfFile(const std::string& path) {
  const OpenedFile file(path);
  struct stat info;
  if (fstat(file.fd(), &info) != 0) throw FileError(path, errno);
  Hasher hasher(Crypto().EVP_sha1());
  const std::string head = "blob " + std::to_string(info.st_size);
  hasher.Add(head.c_str(), head.size() + 1);  // with the zero byte
  AddFile(file.fd(), path, hasher);
  return hasher.Finish();
}

}  // namespace lathe
