#include "lathe/train/support/snapshot.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

constexpr size_t kMaxBytesPerCall = size_t{1} << 30;  // Linux moves at most 2 GiB in one call

// Calls `move(address, size, offset)`, a pread or a pwrite, until all bytes are moved or a call
// fails. Returns false, with errno, if one fails.
template <typename Byte, typename Move>
bool MoveAll(Byte* data, size_t size, Move move) {
  for (size_t done = 0; done < size;) {
    const ssize_t moved =
        move(data + done, std::min(size - done, kMaxBytesPerCall), static_cast<off_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved == 0) errno = EIO;  // the file is shorter than it was
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

}  // namespace

Snapshot::~Snapshot() {
  if (fd_ >= 0) close(fd_);
}

int OpenUnnamedFile(const std::string& dir, bool use_tmpfile) {
  if (use_tmpfile) {
    const int fd = open(dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
  }
  std::string name = dir + "/.snapshot.XXXXXX";
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd >= 0) unlink(name.c_str());
  return fd;
}

int Snapshot::Take(std::span<const float> values) {
  if (fd_ < 0) fd_ = OpenUnnamedFile(dir_);
  taken_ = fd_ >= 0 && MoveAll(reinterpret_cast<const char*>(values.data()), values.size_bytes(),
                               [&](const char* at, size_t n, off_t offset) {
                                 return pwrite(fd_, at, n, offset);
                               });
  return taken_ ? 0 : errno;
}

void Snapshot::Restore(std::span<float> values) const {
  if (!MoveAll(reinterpret_cast<char*>(values.data()), values.size_bytes(),
               [&](char* at, size_t n, off_t offset) { return pread(fd_, at, n, offset); })) {
    throw FileError(dir_ + " (copy of the last good model)", errno);
  }
}

}  // namespace lathe
