#include "lathe/train/checkpoint/folder_claim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
using FileId = std::pair<dev_t, ino_t>;

std::optional<FileId> IdOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileId(info.st_dev, info.st_ino);
}

std::optional<FileId> IdOf(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return std::nullopt;
  return FileId(info.st_dev, info.st_ino);
}

std::string LockFile(const std::string& dir) { return dir + "/" + kFolderLock; }

// A file that this process has locked.
class LockedFile {
 public:
  // -1: there is no file, as none can be locked.
  LockedFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~LockedFile() {
    if (fd_ < 0) return;
    if (IdOf(fd_) == IdOf(path_)) unlink(path_.c_str());
    close(fd_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  // A forked process shares the lock until it closes the file.
  void ForgetInChild() { close(std::exchange(fd_, -1)); }

 private:
  int fd_;
  std::string path_;
};

// What this process has claimed, by folder. It is never destroyed, as threads may outlive main.
struct Claims {
  std::mutex mutex;
  std::map<FileId, std::weak_ptr<LockedFile>> locked;
};

Claims& AllClaims() {
  static Claims* const claims = [] {
    pthread_atfork([] { AllClaims().mutex.lock(); }, [] { AllClaims().mutex.unlock(); },
                   [] {
                     for (auto& [folder, file] : AllClaims().locked) {
                       if (const auto held = file.lock()) held->ForgetInChild();
                     }
                     AllClaims().mutex.unlock();
                   });
    return new Claims;
  }();
  return *claims;
}

// Returns 0, or an errno: EWOULDBLOCK if another has the lock.
int TryLock(int fd, int operation) {
  int result = 0;
  do {
    result = flock(fd, operation | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

void WriteDownHolder(int fd) {
  char host[128] = "";
  gethostname(host, sizeof host - 1);
  const std::string text = "process " + std::to_string(getpid()) + " on " + host + "\n";
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) < 0) {
    return;  // it only helps people
  }
}

// Returns null if another process has claimed the folder.
std::shared_ptr<LockedFile> TryToClaim(const std::string& dir) {
  Claims& claims = AllClaims();
  const std::lock_guard guard(claims.mutex);
  const std::optional<FileId> folder = IdOf(dir);
  const auto nothing = [] { return std::make_shared<LockedFile>(-1, ""); };
  if (!folder) return nothing();
  std::weak_ptr<LockedFile>& own = claims.locked[*folder];
  if (auto held = own.lock()) return held;
  std::error_code code;
  const std::string path = LockFile(std::filesystem::absolute(dir, code).string());
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  // Another user may have made the file.
  if (fd < 0) fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return nothing();
  const int problem = TryLock(fd, LOCK_EX);
  // The process that had the lock before may have removed the file meanwhile.
  if (problem == EWOULDBLOCK || (problem == 0 && IdOf(fd) != IdOf(path))) {
    close(fd);
    return nullptr;
  }
  if (problem != 0) {  // there are no locks here
    unlink(path.c_str());
    close(fd);
    return nothing();
  }
  WriteDownHolder(fd);
  auto file = std::make_shared<LockedFile>(fd, path);
  own = file;
  return file;
}

bool IsClaimedByAnother(const std::string& dir) {
  Claims& claims = AllClaims();
  const std::lock_guard guard(claims.mutex);
  const std::optional<FileId> folder = IdOf(dir);
  if (!folder) return false;
  const auto own = claims.locked.find(*folder);
  if (own != claims.locked.end() && !own->second.expired()) return false;
  const int fd = open(LockFile(dir).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  const int problem = TryLock(fd, LOCK_SH);
  close(fd);
  return problem == EWOULDBLOCK;
}

// Returns "process 4242 on host7", as the holder has written it down.
std::string HolderOf(const std::string& dir) {
  constexpr size_t kMost = 200;
  std::string text;
  try {
    text = ReadRegularFile(LockFile(dir));
  } catch (const Error&) {
    // It has just gone, or is not for this user to read.
  }
  text = text.substr(0, text.find('\n'));
  return text.starts_with("process ") && text.size() <= kMost ? text : "another process";
}

// Asks `is_free` until it says so. Throws once it hasn't for `patience`.
void WaitUntilFree(const std::string& dir, std::chrono::milliseconds patience,
                   const std::function<bool()>& is_free) {
  constexpr std::chrono::milliseconds kPause(20);
  const Clock::time_point end = Clock::now() + patience;
  while (!is_free()) {
    if (Clock::now() >= end || Interrupted()) {
      throw UsageError(dir + ": output_dir is in use by " + HolderOf(dir),
                       "wait until that training has ended, end it, or choose another " +
                           OptionName("output_dir"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

std::chrono::milliseconds ClaimPatience() {
  return std::chrono::seconds(ReadRestarts() > 0 ? 30 : 3);
}

FolderClaim::FolderClaim(const std::string& dir, std::chrono::milliseconds patience) {
  WaitUntilFree(dir, patience, [&] {
    claim_ = TryToClaim(dir);
    return claim_ != nullptr;
  });
}

void CheckNotClaimed(const std::string& dir, std::chrono::milliseconds patience) {
  WaitUntilFree(dir, patience, [&] { return !IsClaimedByAnother(dir); });
}

}  // namespace lathe
