// Forks the ranks of a job on this machine and sees to it that they end together.
//
// - A rank is the leader of a process group, finds standard input empty (but see pass_input), and
//   dies with the thread that started it, however that ends, and so does what it has started in its
//   group. What it leaves there is killed when it ends.
// - SIGINT, SIGTERM and SIGHUP, unless they are ignored as under nohup, are passed on to the ranks,
//   each as often as it comes. Those that have not ended `grace` after the first are killed, or
//   `stop` after one has ended because it has lost another, unless one works on; or when a third
//   signal comes, where those within a second of one count as one with it.
// - When a rank fails, the others have `notice` to find out and end by themselves; then they get
//   SIGTERM, and `stop` later SIGKILL, or `grace` later as long as one works on: it may be saving.
//   The cause is told last, after all that ranks have printed, and also once it has lasted for
//   `patience`.
// - A rank that ends because it has lost another (lost_ranks.h) is the cause only if no other rank
//   here has failed by itself.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lathe/distributed/launch/orphan_guard.h"
#include "lathe/distributed/launch/tagged_output.h"
#include "lathe/distributed/liveness/ended_ranks.h"

namespace lathe {

struct SupervisorOptions {
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  std::chrono::milliseconds notice = std::chrono::seconds(5);
  std::chrono::milliseconds stop = std::chrono::seconds(5);
  std::chrono::milliseconds patience = std::chrono::seconds(1);
  bool tag_output = false;
  bool pass_input = false;  // standard input is the first rank's that is started
};

// While it lives, this thread reads the watched signals from fd(), and SIGPIPE is ignored.
class WatchedSignals {
 public:
  WatchedSignals();
  ~WatchedSignals() { Restore(); }
  WatchedSignals(const WatchedSignals&) = delete;
  WatchedSignals& operator=(const WatchedSignals&) = delete;
  // Everything as it was before; a forked process calls it too.
  void Restore() const;
  int fd() const { return fd_.fd(); }
  // The next that has come; 0 if none has.
  int Next();

 private:
  FileDescriptor fd_;
  sigset_t old_mask_;
  struct sigaction old_child_, old_pipe_;
};

// The numbers of standard streams that are closed go to /dev/null, not to the next file or pipe.
struct StandardStreams {
  StandardStreams();
};

class RankSupervisor {
 public:
  explicit RankSupervisor(const SupervisorOptions& options) : options_(options) {}
  // Kills the ranks that still run.
  ~RankSupervisor();
  RankSupervisor(const RankSupervisor&) = delete;
  RankSupervisor& operator=(const RankSupervisor&) = delete;

  // Forks a process that runs `body`, which must not return. Where this process has several
  // threads, `body` may only call what is safe in a signal handler.
  void Start(int rank, const std::function<void()>& body);

  // Returns when all ranks have ended: 0; or the exit code of the first that failed, 128 + signal
  // if one killed it; or 128 + signal if one came here before and no rank failed otherwise. What
  // happened is told on standard error.
  int Wait();

  const EndedRanks& ended() const { return ended_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { kRunning, kNotice, kStopping, kGrace, kKilled };
  struct Rank {
    int rank;
    pid_t process;
    bool running = true;
    int status = 0;      // as waitpid tells it
    int64_t effort = 0;  // processor time when TakeEffort looked, in ticks
  };

  bool AnyRuns() const;
  void SignalAll(int signal_number) const;
  void Reap();
  bool FollowedASignal(const Rank& rank) const;
  void NoteFailure(const Rank& rank);
  void TakeEffort();
  bool AnyWorks() const;
  std::string Describe(const Rank& rank) const;
  void TellCauseEarly();
  void TellCause();
  void PassOn(int signal_number);
  void KillAll(const std::string& why);
  // Goes to a stage that ends after `time`.
  void Enter(Stage stage, std::chrono::milliseconds time);
  void EndStage();
  int PollTimeout() const;
  void Say(const std::string& text);

  SupervisorOptions options_;
  StandardStreams streams_;
  WatchedSignals signals_;
  TaggedOutput output_;
  OrphanGuard guard_;
  EndedRanks ended_;
  std::vector<Rank> ranks_;
  Stage stage_ = Stage::kRunning;
  Clock::time_point stage_end_ = Clock::time_point::max();
  const Rank* cause_ = nullptr;  // the first that failed, once one has
  bool told_early_ = false;      // what the cause is
  Clock::time_point early_ = Clock::time_point::max();
  Clock::time_point stop_by_ = Clock::time_point::max();  // when all are killed at the latest
  std::vector<int> passed_on_;                            // signals
  bool by_signal_ = false;                                // the job ends, not by a failure
  int wishes_ = 0;                                        // to end, in signals
  Clock::time_point last_wish_;
  bool told_to_end_ = false;  // by a signal: who reads the output is not waited for without end
  int exit_code_ = 0;
};

}  // namespace lathe
