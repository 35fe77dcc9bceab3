// A lock that processes of one machine, and of several machines with one file system, hold in turn.
// It is a file with flock, as huggingface_hub's; the kernel frees the lock of a process that dies.
#pragma once

#include <functional>
#include <string>

namespace lathe {

class FileLock {
 public:
  // Waits for the lock. After two seconds a line on standard error says which process holds it, and
  // that this process fetches `what`, unless that is empty. `progress` returns a number that
  // changes while the holder gets on. Throws DeadlineExceeded, naming the holder, once it has not
  // changed for `timeout` seconds. Throws CacheError if the file can't be opened. A file system
  // without locks gives none: then two processes may fetch the same file, each into a temporary
  // file of its own.
  FileLock(const std::string& path, double timeout, const std::string& what,
           const std::function<long long()>& progress);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Returns false if the file system has no locks: others may write there at the same time.
  bool is_held() const { return is_held_; }

 private:
  int fd_ = -1;
  bool is_held_ = false;
};

// Returns who holds the lock, such as "process 4242 (lathe)", or "" if nobody does.
std::string HolderOfLock(const std::string& path);

}  // namespace lathe
