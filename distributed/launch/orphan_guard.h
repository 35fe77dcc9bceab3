// A small process that kills process groups if this process ends without having removed them, for
// example by SIGKILL. PR_SET_PDEATHSIG ends a rank. If the rank is a script, it does not end the
// programs that the script has started.
#pragma once

#include <sys/types.h>

namespace lathe {

class OrphanGuard {
 public:
  // Forks the guard. If no process can be had, the groups are not guarded.
  OrphanGuard();
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  void Add(pid_t group);
  void Remove(pid_t group);
  // Call this in a forked process, which would otherwise keep the guard waiting.
  void CloseInChild();

 private:
  int fd_ = -1;  // to the guard, which takes its closing for the end of this process
  pid_t guard_ = -1;
};

}  // namespace lathe
