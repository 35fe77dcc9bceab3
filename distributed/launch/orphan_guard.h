// A small process that kills process groups if this one ends without having taken care of them,
// as by SIGKILL: PR_SET_PDEATHSIG reaches a rank, but not what a rank that is a script has started.
#pragma once

#include <sys/types.h>

namespace lathe {

class OrphanGuard {
 public:
  // Forks it. Without it (there is no process to be had) groups are not guarded.
  OrphanGuard();
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  void Add(pid_t group);
  void Remove(pid_t group);
  // For a forked process, which else would keep the guard waiting.
  void CloseInChild();

 private:
  int fd_ = -1;  // to the guard, which takes its end for this process's
  pid_t guard_ = -1;
};

}  // namespace lathe
