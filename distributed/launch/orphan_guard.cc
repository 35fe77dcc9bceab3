// The part of the supervisor that outlives the launcher: a process that kills what ranks leave.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "lathe/distributed/launch/rank_supervisor.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {
namespace {

// Reads process groups until the other end is closed, then kills them. A negative number removes a
// group. Calls only functions that are safe in a signal handler: the process may have been forked
// from one with several threads.
[[noreturn]] void Guard(int fd) {
  prctl(PR_SET_NAME, "lathe guard");
  setsid();  // so that signals to the launcher's group don't reach it
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signal(signal_number, SIG_IGN);
  const int nothing = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  static pid_t groups[kMostProcesses];
  int count = 0;
  pid_t group = 0;
  for (;;) {
    const ssize_t got = read(fd, &group, sizeof group);
    if (got < 0) continue;
    if (got != sizeof group) break;
    if (group > 0 && count < kMostProcesses) groups[count++] = group;
    for (int i = 0; i < count; ++i) {
      if (groups[i] == -group) groups[i--] = groups[--count];
    }
  }
  for (int i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  const FileDescriptor in(ends[0]);
  pipe_ = FileDescriptor(ends[1]);
  guard_ = fork();
  if (guard_ != 0) return;
  pipe_ = FileDescriptor();
  Guard(in.fd());
}

OrphanGuard::~OrphanGuard() {
  if (guard_ <= 0) return;
  kill(guard_, SIGKILL);  // nothing is left to guard; it may have been stopped
  waitpid(guard_, nullptr, 0);
}

void OrphanGuard::Add(pid_t group) {
  if (write(pipe_.fd(), &group, sizeof group) < 0) return;  // there is no guard
}

void OrphanGuard::CloseInChild() {
  pipe_ = FileDescriptor();
  guard_ = -1;
}

}  // namespace lathe
