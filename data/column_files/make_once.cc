#include "lathe/data/column_files/make_once.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// No other program has such files, which are removed.
constexpr char kDraftExtension[] = ".lathe_draft";

// An open draft, locked by this process or not.
class Draft {
 public:
  Draft(std::string path, int flags)
      : path_(std::move(path)),
        fd_(open(path_.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0666)) {}
  ~Draft() {
    if (fd_ >= 0) close(fd_);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  // Returns false if another process has the lock, unless it is to wait.
  bool Lock(bool wait) const {
    for (;;) {
      if (flock(fd_, wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0) return true;
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return false;
      throw FileError(path_, errno);
    }
  }

  // Returns true if the path still leads to the open file. Otherwise the process that had the lock
  // before has renamed or removed it.
  bool IsAtPath() const {
    struct stat opened, found;
    return fstat(fd_, &opened) == 0 && lstat(path_.c_str(), &found) == 0 &&
           opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
  }

 private:
  std::string path_;
  int fd_;
};

}  // namespace

void RemoveLeftDrafts(const std::string& folder) {
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() != kDraftExtension) continue;
    const Draft draft(entry.path().string(), 0);
    if (draft.is_open() && draft.Lock(/*wait=*/false) && draft.IsAtPath())
      unlink(draft.path().c_str());
  }
}

void MakeOnce(const std::string& path, const MakeOnceOptions& options) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) throw FileError(folder.string(), code.value());
  RemoveLeftDrafts(folder.string());
  for (;;) {
    const Draft draft(fs::path(path).replace_extension(kDraftExtension).string(), O_CREAT);
    if (!draft.is_open()) throw FileError(draft.path(), errno);
    if (!draft.Lock(/*wait=*/false)) {
      if (options.on_wait) options.on_wait();
      draft.Lock(/*wait=*/true);
    }
    if (!draft.IsAtPath()) {
      if (options.is_there()) return;
      continue;
    }
    try {
      if (options.is_there()) {
        unlink(draft.path().c_str());
        return;
      }
      options.make(draft.path());
      if (fsync(draft.fd()) != 0 || rename(draft.path().c_str(), path.c_str()) != 0)
        throw FileError(path, errno);
    } catch (...) {
      // HDF5 may keep a file open that it couldn't write. This gives its blocks back all the same.
      const int truncated = ftruncate(draft.fd(), 0);
      static_cast<void>(truncated);  // an unlinked file is all that matters to others
      unlink(draft.path().c_str());
      throw;
    }
    SyncFolder(folder.string());
    return;
  }
}

}  // namespace lathe
