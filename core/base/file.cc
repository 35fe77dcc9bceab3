#include "lathe/core/base/file.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

namespace lathe {
namespace {

// Closes the file on every way out. It is for files that are only read or synced, where close can't
// lose data.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Removes the temporary file, unless Commit says that it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!committed_) {
      unlink(path_.c_str());
    }
  }
  const std::string& path() const { return path_; }
  void Commit() { committed_ = true; }

 private:
  std::string path_;
  bool committed_ = false;
};

// Creates an empty file beside `path` that no other process or thread uses.
TemporaryFile CreateTemporary(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  for (;;) {
    std::string name = path + ".tmp." + std::to_string(getpid()) + "." + std::to_string(counter++);
    Descriptor fd(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() >= 0) {
      struct stat old;
      if (stat(path.c_str(), &old) == 0 && fchmod(fd.get(), old.st_mode & 07777) != 0) {
        const int error_number = errno;
        unlink(name.c_str());
        throw FileError(path, error_number);
      }
      return TemporaryFile(std::move(name));
    }
    if (errno != EEXIST) {
      throw FileError(path, errno);
    }
  }
}

void Sync(const std::string& opened, int flags, const std::string& shown) {
  Descriptor fd(open(opened.c_str(), flags | O_CLOEXEC));
  // Some network file systems can't sync a folder and return EINVAL. Then the rename has to do.
  if (fd.get() < 0 || (fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw FileError(shown, errno);
  }
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

Error FileError(absl::StatusCode code, const std::string& path, const std::string& problem,
                std::string hint, std::source_location location) {
  return Error(code, path + ": " + problem, std::move(hint), location)
      .WithDetail(AboutFile{path, problem});
}

Error FileError(const std::string& path, int error_number, std::source_location location) {
  const std::string hint = error_number == ENOSPC || error_number == EDQUOT
                               ? "free some space or choose another folder"
                           : error_number == EFBIG ? "raise the limit on file sizes (ulimit -f)"
                                                   : "";
  return FileError(absl::ErrnoToStatusCode(error_number), path,
                   std::generic_category().message(error_number), hint, location);
}

std::optional<std::string> PathWithin(const std::string& folder, const std::string& path) {
  if (path == folder) return "";
  if (!path.starts_with(folder + "/")) return std::nullopt;
  return path.substr(folder.size() + 1);
}

Error WithFolder(const Error& e, const std::string& from, const std::string& to) {
  const auto* about = e.detail<AboutFile>();
  if (about == nullptr) return e;
  const std::optional<std::string> name = PathWithin(from, about->path);
  if (!name) return e;
  return FileError(e.code(), name->empty() ? to : to + "/" + *name, about->problem, e.hint(),
                   e.location());
}

FileWriter::FileWriter(const std::string& path, std::string shown_path)
    : shown_path_(std::move(shown_path)),
      fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) {
    throw FileError(shown_path_, errno);
  }
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void FileWriter::Write(const void* data, size_t size) {
  // The kernel may copy a whole piece before it lets other threads run on the processor, and a
  // checkpoint is written beside a training.
  constexpr size_t kPiece = size_t{1} << 17;
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd_, at, std::min(size, kPiece));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw FileError(shown_path_, errno);
    }
    at += written;
    size -= static_cast<size_t>(written);
  }
}

void FileWriter::Close() {
  if (close(std::exchange(fd_, -1)) != 0) {
    throw FileError(shown_path_, errno);
  }
}

std::string ReadFile(const std::string& path) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) {
    throw FileError(path, errno);
  }
  std::string contents;
  // The size is only a guess: files in /proc say 0, and a file may grow. So read until the end. The
  // extra byte lets the usual case find the end without another allocation.
  contents.resize(static_cast<size_t>(std::max<off_t>(info.st_size, 0)) + 1);
  size_t size = 0;
  for (;;) {
    const ssize_t got = read(fd.get(), contents.data() + size, contents.size() - size);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw FileError(path, errno);
    }
    if (got == 0) {
      break;
    }
    size += static_cast<size_t>(got);
    if (size == contents.size()) {
      contents.resize(std::max<size_t>(2 * size, 4096));
    }
  }
  contents.resize(size);
  return contents;
}

void WriteFileAtomically(const std::string& path,
                         const std::function<void(const std::string&)>& write) {
  TemporaryFile temporary = CreateTemporary(path);
  write(temporary.path());
  Sync(temporary.path(), O_WRONLY, path);
  if (rename(temporary.path().c_str(), path.c_str()) != 0) {
    throw FileError(path, errno);
  }
  temporary.Commit();
  // Without this, a power cut could undo the rename after the caller was told that the file is
  // there.
  Sync(FolderOf(path), O_RDONLY | O_DIRECTORY, path);
}

void SyncFile(const std::string& path) { Sync(path, O_RDONLY, path); }

void SyncFolder(const std::string& dir) { Sync(dir, O_RDONLY | O_DIRECTORY, dir); }

void WriteFileAtomically(const std::string& path, std::string_view contents) {
  WriteFileAtomically(path, [&](const std::string& temporary) {
    FileWriter file(temporary, path);
    file.Write(contents.data(), contents.size());
    file.Close();
  });
}

}  // namespace lathe
