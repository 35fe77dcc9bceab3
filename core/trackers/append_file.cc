#include "lathe/core/trackers/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lathe/core/base/file.h"

namespace lathe {

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code code;
  if (!folder.empty()) std::filesystem::create_directories(folder, code);
  if (code) throw FileError(folder.string(), code.value());
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw FileError(path_, errno);
}

AppendFile::~AppendFile() { close(fd_); }

bool AppendFile::EndsWithinLine() const {
  struct stat info;
  char last = '\n';
  if (fstat(fd_, &info) != 0 || info.st_size == 0) return false;
  return pread(fd_, &last, 1, info.st_size - 1) == 1 && last != '\n';
}

void AppendFile::Append(std::string_view bytes) {
  struct stat info;
  if (fstat(fd_, &info) != 0) throw FileError(path_, errno);
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      const int error_number = errno;
      // A part of a record would hide all that follows it from readers.
      if (ftruncate(fd_, info.st_size) != 0) throw FileError(path_, errno);
      throw FileError(path_, error_number);
    }
  }
}

}  // namespace lathe
