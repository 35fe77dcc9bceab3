#include "lathe/core/hub/file_lock.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/transfer_progress.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kQuiet = 2;  // seconds of waiting that nobody needs to hear of

// Returns the id of a process of this machine that has a lock on the open file, or 0.
int HolderOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return 0;
  // A line is "1: FLOCK  ADVISORY  WRITE 4242 08:01:12345 0 EOF"; the file's number is its inode.
  std::ifstream locks("/proc/locks");
  const std::string inode = ":" + std::to_string(info.st_ino);
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, mode, access, process, file;
    words >> number >> kind;
    if (kind == "->") continue;  // waits
    if (words >> mode >> access >> process >> file && file.ends_with(inode)) {
      return std::max(std::atoi(process.c_str()), 0);
    }
  }
  return 0;
}

std::string DescribeHolder(int fd) {
  const int process = HolderOf(fd);
  if (process > 0) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(process) + "/comm"), name);
    return "process " + std::to_string(process) + (name.empty() ? "" : " (" + name + ")");
  }
  // The holder may run on another machine. Lathe's processes write down who they are.
  char text[256];
  const ssize_t got = pread(fd, text, sizeof text, 0);
  std::string written(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  written = written.substr(0, written.find('\n'));
  return written.starts_with("process ") ? written : "another process";
}

void WriteDownHolder(int fd) {
  char host[128] = "";
  gethostname(host, sizeof host - 1);
  const std::string text = "process " + std::to_string(getpid()) + " on " + host + "\n";
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) < 0) {
    return;  // it only helps people
  }
}

}  // namespace

FileLock::FileLock(const std::string& path, double timeout, const std::string& what,
                   const std::function<long long()>& progress) {
  Clock::time_point changed = Clock::now();
  const Clock::time_point start = changed;
  const auto since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  long long last = progress();
  bool is_said = what.empty();
  for (double pause = 0.01;; pause = std::min(2 * pause, 0.2)) {
    if (fd_ < 0) fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (fd_ < 0) throw CacheError(path, errno);
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) {
      struct stat opened, there;
      // Its last holder may have removed the file meanwhile; then the lock is worth nothing.
      if (fstat(fd_, &opened) == 0 && stat(path.c_str(), &there) == 0 &&
          opened.st_ino == there.st_ino && opened.st_dev == there.st_dev) {
        WriteDownHolder(fd_);
        is_held_ = true;
        return;
      }
      close(std::exchange(fd_, -1));
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // no locks here
    if (const long long now = progress(); now != last) {
      last = now;
      changed = Clock::now();
    }
    if (since(changed) > timeout) {
      const std::string holder = DescribeHolder(fd_);
      close(std::exchange(fd_, -1));
      throw Error(absl::StatusCode::kDeadlineExceeded,
                  path + ": held by " + holder + ", which has fetched nothing for " +
                      std::to_string(static_cast<long>(timeout)) + " seconds",
                  "end that process if it hangs, then try again");
    }
    if (!is_said && since(start) > kQuiet) {
      is_said = true;
      PrintNote("note: waiting for " + DescribeHolder(fd_) + ", which fetches " + what);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

std::string HolderOfLock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string holder;
  if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) holder = DescribeHolder(fd);
  close(fd);
  return holder;
}

}  // namespace lathe
