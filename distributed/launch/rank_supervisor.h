// Forks the ranks of a job on this machine and makes sure that they end together.
//
//   WatchedSignals signals;
//   RankSupervisor supervisor(options, signals);
//   for (int rank = 0; rank < 4; ++rank) supervisor.Start(rank, [] { ... });
//   int exit_code = supervisor.Wait();
//
// - A rank is the leader of a process group (setpgid) and finds standard input empty (but see
//   pass_input). It dies with the thread that started it, however that thread ends. So do the
//   processes that it has started in its group. When it ends, those that are left are killed.
// - SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the ranks, each as often as it comes,
//   unless they are ignored as under nohup. Ranks that have not ended `grace` after the first
//   signal are killed. If a rank ends because it has lost another, the rest are killed `stop`
//   after that, unless one of them works on. A third signal kills them at once. Signals within a
//   second count as one.
// - When a rank fails, the others have `notice` to find out and end by themselves. Then they get
//   SIGTERM, and SIGKILL `stop` later. While a rank works on, it may be saving, so SIGKILL waits,
//   but at most until `grace` after SIGTERM. The launcher tells the cause last, after all that the
//   ranks have printed. If ranks still run `patience` after the failure, it tells the cause then,
//   too.
// - The cause is the first rank that failed. One that ends because it has lost another
//   (who_reports.h) is the cause only if no rank here fails by itself within `notice`.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lathe/distributed/launch/launch.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

using FileDescriptor = Socket;  // pipes are closed like sockets

inline constexpr int kSignalExitCode = 128;  // + the signal, as a shell reports it
// The signals that are passed on to the ranks.
inline constexpr std::array kPassedOnSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
// Returns "signal 15 (Terminated)".
std::string SignalText(int signal_number);

// While it lives, this thread reads the watched signals from fd(), and SIGPIPE is ignored. Standard
// streams that were closed lead to /dev/null, so that no file or pipe gets their numbers.
class WatchedSignals {
 public:
  WatchedSignals();
  ~WatchedSignals() { Restore(); }
  WatchedSignals(const WatchedSignals&) = delete;
  WatchedSignals& operator=(const WatchedSignals&) = delete;
  // Makes everything as it was before. A forked process calls it too.
  void Restore() const;
  int fd() const { return fd_.fd(); }
  // Returns the next signal other than SIGCHLD that has come; 0 if none has.
  int Next();
  // Waits for one and returns it; 0 if none comes within `time`.
  int WaitFor(std::chrono::milliseconds time);

 private:
  FileDescriptor fd_;
  sigset_t old_mask_;
  struct sigaction old_child_, old_pipe_;
};

// Prints the output of several processes as whole lines, each with its rank before it: "[1] text".
// Never waits: the caller polls, so that a reader that has stopped can't keep the caller from
// signals.
class TaggedOutput {
 public:
  // Returns a pipe's end that is to take the place of a process's `stream` (STDOUT_FILENO or
  // STDERR_FILENO). This object reads the other end, and closes it once nobody reads this process's
  // own `stream`.
  FileDescriptor Add(int rank, int stream);
  // Adds a line of the caller's own, with its end, to standard error, after the lines that wait.
  void Say(const std::string& line);

  // AppendTo appends what to poll for; Handle takes the same entries back after the poll.
  void AppendTo(std::vector<pollfd>& polled) const;
  void Handle(std::span<const pollfd> polled);
  // Reads what the pipes still hold, for when the processes have ended.
  void ReadRest();
  // Returns true while lines wait to be written.
  bool waiting() const { return !queue_.empty(); }
  // Closes what only this process needs. For use in a process that it forked; safe in a signal
  // handler.
  void CloseInChild() const;

 private:
  struct Source {
    FileDescriptor pipe;
    int rank, stream;
    std::string line;  // the last line, as far as it has come
  };
  struct Line {
    int stream;
    std::string text;
  };

  // Returns false at the end of the source, which is of no more use then.
  bool Read(Source& source);
  void Finish(Source& source);
  void WriteSome();

  std::deque<Source> sources_;
  std::deque<Line> queue_;  // one for both streams: they may lead to the same place
  size_t written_ = 0;      // bytes of the first line
};

// A small process that kills process groups if this process ends without having removed them, for
// example by SIGKILL. PR_SET_PDEATHSIG ends a rank. If the rank is a script, it does not end the
// programs that the script has started.
class OrphanGuard {
 public:
  // Forks the guard. If no process can be had, the groups are not guarded.
  OrphanGuard();
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  void Add(pid_t group);
  void Remove(pid_t group) { Add(-group); }
  // Call this in a forked process, which would otherwise keep the guard waiting.
  void CloseInChild();

 private:
  FileDescriptor pipe_;  // to the guard, which takes its closing for the end of this process
  pid_t guard_ = -1;
};

class RankSupervisor {
 public:
  // `signals` must outlive the supervisor. Several supervisors may use it one after another, so
  // that no signal is lost between them.
  RankSupervisor(const SupervisorOptions& options, WatchedSignals& signals)
      : options_(options), signals_(signals) {}
  // Kills the ranks that still run.
  ~RankSupervisor();
  RankSupervisor(const RankSupervisor&) = delete;
  RankSupervisor& operator=(const RankSupervisor&) = delete;

  // Forks a process that runs `body`, which must not return. If this process has several threads,
  // `body` may only call what is safe in a signal handler.
  void Start(int rank, const std::function<void()>& body);

  // Waits until all ranks have ended, and says on standard error what happened. Returns 0 if all
  // ended well. If a rank failed, returns the exit code of the cause, or 128 + the signal that
  // killed it. If only a signal that came here has ended the job, returns 128 + that signal.
  int Wait();

  const EndedRanksRecord& ended() const { return ended_; }
  // Returns true if a signal that came here has ended the job.
  bool ended_by_signal() const { return !passed_on_.empty(); }
  // Returns how many ranks have failed by themselves: not because another was lost, and not because
  // they were told to end. Valid after Wait.
  int num_failed_alone() const { return num_failed_alone_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage {
    kRunning,         // no end is in sight
    kRankFailed,      // the others have `notice` to find out and end by themselves
    kStopping,        // all were told to end; they have `stop` or, while one works, up to `grace`
    kSignalPassedOn,  // a signal came here, and the ranks have `grace`
    kSigkillSent,
  };
  struct Rank {
    int rank;
    pid_t process;
    bool running = true;
    int status = 0;     // from waitpid
    int64_t ticks = 0;  // of processor time, when the last kStopping began
  };

  bool AnyRuns() const;
  void SignalAll(int signal_number) const;
  void Reap();
  void NoteFailure(const Rank& rank);
  bool AnyIsBusy() const;
  std::string Describe(const Rank& rank) const;
  void TellCause();
  void PassOn(int signal_number);
  void KillAll(const std::string& why);
  // Begins a stage that ends after `time`, and not after kill_by_.
  void BeginStage(Stage stage, std::chrono::milliseconds time);
  void EndStage();
  void Say(const std::string& text);

  SupervisorOptions options_;
  WatchedSignals& signals_;
  TaggedOutput output_;
  OrphanGuard guard_;
  EndedRanksRecord ended_;
  std::vector<Rank> ranks_;
  Stage stage_ = Stage::kRunning;
  Clock::time_point stage_end_ = Clock::time_point::max();
  const Rank* cause_ = nullptr;  // the first that failed, once one has
  bool told_early_ = false;      // true once the cause was told early
  Clock::time_point tell_cause_at_ = Clock::time_point::max();
  Clock::time_point kill_by_ = Clock::time_point::max();  // when all are killed at the latest
  std::vector<int> passed_on_;                            // signals that have come here
  bool by_signal_ = false;                                // a signal, and no failure, ends the job
  int stop_requests_ = 0;  // the number of signals, with those within a second counted once
  Clock::time_point last_stop_request_;
  int exit_code_ = 0, num_failed_alone_ = 0;
};

}  // namespace lathe
