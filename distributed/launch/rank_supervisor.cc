#include "lathe/distributed/launch/rank_supervisor.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

int ExitCode(int status) {
  return WIFSIGNALED(status) ? kSignalExitCode + WTERMSIG(status) : WEXITSTATUS(status);
}

struct Activity {
  int64_t ticks = 0;  // of processor time
  bool waits_for_disk = false;
};

// Sums up all processes in the process group of this leader.
Activity ActivityOf(pid_t leader) {
  Activity activity;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", code)) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t end = text.rfind(") ");  // the end of the program's name, which may hold anything
    if (end == std::string::npos) continue;
    std::istringstream fields(text.substr(end + 2));
    char state = 0;
    int64_t parent = 0, group = 0, value = 0, user = 0, system = 0;
    fields >> state >> parent >> group;
    if (group != leader) continue;
    for (int i = 6; i < 14; ++i) fields >> value;
    fields >> user >> system;
    activity.ticks += user + system;
    activity.waits_for_disk = activity.waits_for_disk || state == 'D';
  }
  return activity;
}

void MoveTo(int stream, int fd) {
  if (fd < 0) return;
  dup2(fd, stream);
  close(fd);
}

// Returns a timeout of poll that ends when the deadline has passed.
int MillisecondsUntil(std::chrono::steady_clock::time_point deadline) {
  return static_cast<int>(TimeLeft(deadline).count()) + 1;
}

// Opens /dev/null for standard streams that are closed.
void OpenStandardStreams() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = dup(fd);
  if (fd >= 0) close(fd);
}

}  // namespace

std::string SignalText(int signal_number) {
  return absl::StrCat("signal ", signal_number, " (", strsignal(signal_number), ")");
}

WatchedSignals::WatchedSignals() {
  OpenStandardStreams();  // before fd_, which must not get the number of one
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal_number : kPassedOnSignals) {
    struct sigaction action {};
    sigaction(signal_number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&watched, signal_number);
  }
  fd_ = FileDescriptor(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    throw Error(absl::ErrnoToStatusCode(errno),
                std::string("[launch] cannot watch for signals: ") + std::strerror(errno));
  }
  pthread_sigmask(SIG_BLOCK, &watched, &old_mask_);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;  // if it were ignored, children would vanish without a status
  sigaction(SIGCHLD, &action, &old_child_);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &old_pipe_);
}

void WatchedSignals::Restore() const {
  sigaction(SIGCHLD, &old_child_, nullptr);
  sigaction(SIGPIPE, &old_pipe_, nullptr);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

int WatchedSignals::Next() {
  signalfd_siginfo info;
  while (read(fd_.fd(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
  }
  return 0;
}

int WatchedSignals::WaitFor(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    pollfd polled = {fd(), POLLIN, 0};
    poll(&polled, 1, MillisecondsUntil(end));
    if (const int signal_number = Next()) return signal_number;
  }
  return 0;
}

RankSupervisor::~RankSupervisor() {
  SignalAll(SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.running) waitpid(rank.process, nullptr, 0);
  }
}

void RankSupervisor::Start(int rank, const std::function<void()>& body) {
  FileDescriptor out, err;
  if (options_.tag_output) {
    out = output_.Add(rank, STDOUT_FILENO);
    err = output_.Add(rank, STDERR_FILENO);
  }
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t launcher = getpid();
  const pid_t process = fork();
  if (process < 0) {
    throw Error(absl::ErrnoToStatusCode(errno),
                absl::StrCat("[launch] rank ", rank, " cannot be started: ", std::strerror(errno)),
                "start fewer processes");
  }
  if (process > 0) {
    setpgid(process, process);  // the child does it too: either may come first
    guard_.Add(process);
    ranks_.push_back({rank, process});
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher)
    _exit(kSignalExitCode + SIGKILL);  // the launcher died before the call of prctl
  setpgid(0, 0);
  output_.CloseInChild();
  guard_.CloseInChild();
  if (!options_.pass_input || !ranks_.empty()) MoveTo(STDIN_FILENO, nothing.fd());
  MoveTo(STDOUT_FILENO, out.fd());
  MoveTo(STDERR_FILENO, err.fd());
  signals_.Restore();
  close(signals_.fd());
  body();
  _exit(0);
}

int RankSupervisor::Wait() {
  // SIGCHLD may go to another thread of this process, which ignores it. So ranks that have ended
  // are also looked for once in a while.
  constexpr std::chrono::milliseconds kLook(500);
  const auto reader_has_time = [&] { return passed_on_.empty() || Clock::now() < stage_end_; };
  while (AnyRuns() || (output_.waiting() && reader_has_time())) {
    std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
    output_.AppendTo(polled);
    const Clock::time_point next = std::min({stage_end_, tell_cause_at_, Clock::now() + kLook});
    const bool waits_for_reader_only = !AnyRuns() && passed_on_.empty();
    poll(polled.data(), polled.size(), waits_for_reader_only ? -1 : MillisecondsUntil(next));
    output_.Handle(std::span(polled).subspan(1));
    while (const int signal_number = signals_.Next()) PassOn(signal_number);
    Reap();
    if (AnyRuns() && Clock::now() >= tell_cause_at_) TellCause();
    if (AnyRuns() && Clock::now() >= stage_end_) EndStage();
  }
  return exit_code_;
}

bool RankSupervisor::AnyRuns() const { return std::ranges::any_of(ranks_, &Rank::running); }

void RankSupervisor::SignalAll(int signal_number) const {
  for (const Rank& rank : ranks_) {
    if (rank.running) kill(-rank.process, signal_number);
  }
}

void RankSupervisor::Reap() {
  std::vector<const Rank*> failed;
  for (Rank& rank : ranks_) {
    siginfo_t info{};
    const auto id = static_cast<id_t>(rank.process);
    if (!rank.running || waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    kill(-rank.process, SIGKILL);  // before waitpid, which frees the process id for others
    guard_.Remove(rank.process);
    waitpid(rank.process, &rank.status, 0);
    rank.running = false;
    const int code = ExitCode(rank.status);
    ended_.Add(rank.rank, code);
    if (code == 0) continue;
    failed.push_back(&rank);
    // Once the ranks were told to end, they end with that signal.
    const bool told_to_end = stage_ != Stage::kRunning && stage_ != Stage::kRankFailed;
    if (code != kLostRankExitCode && !told_to_end) ++num_failed_alone_;
  }
  if (!AnyRuns()) output_.ReadRest();
  if (!AnyRuns() && !passed_on_.empty())
    stage_end_ = std::min(stage_end_, Clock::now() + options_.stop);
  // If several failures are found at once, a rank that was killed has made the others fail.
  std::ranges::stable_partition(failed, [](const Rank* r) { return WIFSIGNALED(r->status); });
  for (const Rank* rank : failed) NoteFailure(*rank);
  if (!AnyRuns()) TellCause();
}

void RankSupervisor::NoteFailure(const Rank& rank) {
  if (stage_ == Stage::kSigkillSent) return;
  const int code = ExitCode(rank.status);
  const bool has_lost_another = code == kLostRankExitCode;
  if (stage_ == Stage::kRunning) {
    BeginStage(Stage::kRankFailed, options_.notice);
    tell_cause_at_ = Clock::now() + options_.patience;
  } else if (by_signal_) {
    if (stage_ == Stage::kSignalPassedOn && has_lost_another) {
      // The rank that it has lost may hang.
      kill_by_ = stage_end_;
      BeginStage(Stage::kStopping, options_.stop);
    }
    // A signal ends the job, and yet one rank may fail by itself: it could not save, for example.
    const bool as_told = std::ranges::count(passed_on_, code - kSignalExitCode) > 0;
    if (cause_ != nullptr || has_lost_another || as_told) return;
  } else if (stage_ != Stage::kRankFailed || exit_code_ != kLostRankExitCode || has_lost_another) {
    return;  // the first failure is why the job ends
  }
  cause_ = &rank;
  exit_code_ = code;
}

std::string RankSupervisor::Describe(const Rank& rank) const {
  const std::string text = absl::StrCat("rank ", rank.rank, " (process ", rank.process, ") ");
  if (WIFSIGNALED(rank.status)) return text + "was killed by " + SignalText(WTERMSIG(rank.status));
  const int code = ExitCode(rank.status), signal_number = code - kSignalExitCode;
  const bool as_told = std::ranges::count(kPassedOnSignals, signal_number) > 0;
  return absl::StrCat(text, "ended with exit code ", code,
                      as_told                     ? ", as told by " + SignalText(signal_number)
                      : code == kLostRankExitCode ? ", because it has lost another rank"
                                                  : "");
}

// Tells the cause once while others still run, and when all ranks have ended and all that they
// printed has come.
void RankSupervisor::TellCause() {
  if (cause_ == nullptr) return;
  if (AnyRuns()) {
    tell_cause_at_ = Clock::time_point::max();
    if (!std::exchange(told_early_, true)) Say(Describe(*cause_) + "; stopping the others");
  } else {
    if (!told_early_) Say(Describe(*cause_));
    if (told_early_ && exit_code_ != kLostRankExitCode)
      Say("the job failed because " + Describe(*cause_));
    cause_ = nullptr;
  }
}

void RankSupervisor::PassOn(int signal_number) {
  constexpr std::chrono::seconds kSameRequest(1);
  SignalAll(signal_number);
  passed_on_.push_back(signal_number);
  const Clock::time_point now = Clock::now();
  if (stop_requests_ == 0 || now - last_stop_request_ > kSameRequest) {
    last_stop_request_ = now;
    if (++stop_requests_ == 3 && AnyRuns() && stage_ != Stage::kSigkillSent)
      KillAll("did not end, and this is the third signal");
  }
  if (!AnyRuns()) stage_end_ = Clock::now();
  if (stage_ != Stage::kRunning) return;
  exit_code_ = kSignalExitCode + signal_number;
  by_signal_ = true;
  if (AnyRuns()) BeginStage(Stage::kSignalPassedOn, options_.grace);
}

// Returns true if a rank has computed for a twentieth of the time since kStopping began, on one
// core, or waits for a disk right now.
bool RankSupervisor::AnyIsBusy() const {
  const int64_t least = options_.stop.count() * sysconf(_SC_CLK_TCK) / 1000 / 20;
  return std::ranges::any_of(ranks_, [&](const Rank& rank) {
    if (!rank.running) return false;
    const Activity activity = ActivityOf(rank.process);
    return activity.waits_for_disk || activity.ticks - rank.ticks > least;
  });
}

void RankSupervisor::BeginStage(Stage stage, std::chrono::milliseconds time) {
  if (stage == Stage::kStopping) {
    for (Rank& rank : ranks_) rank.ticks = ActivityOf(rank.process).ticks;
  }
  stage_ = stage;
  stage_end_ = std::min(Clock::now() + time, kill_by_);
}

void RankSupervisor::EndStage() {
  if (stage_ == Stage::kRankFailed) {
    TellCause();
    SignalAll(SIGTERM);
    kill_by_ = Clock::now() + options_.grace;
    return BeginStage(Stage::kStopping, options_.stop);
  }
  // A rank that works on may be saving.
  if (stage_ == Stage::kStopping && Clock::now() < kill_by_ && AnyIsBusy())
    return BeginStage(Stage::kStopping, options_.stop);
  const bool long_ago = stage_ == Stage::kSignalPassedOn || Clock::now() >= kill_by_;
  KillAll(by_signal_ && !long_ago
              ? "did not end, though another rank has ended because it has lost one"
              : "did not end within " + SecondsText(long_ago ? options_.grace : options_.stop) +
                    " of being told to");
}

void RankSupervisor::KillAll(const std::string& why) {
  std::vector<int> left;
  for (const Rank& rank : ranks_) {
    if (rank.running) left.push_back(rank.rank);
  }
  Say(RankNames(left) + ' ' + why + "; " + (left.size() > 1 ? "they are" : "it is") + " killed");
  SignalAll(SIGKILL);
  stage_ = Stage::kSigkillSent;
  stage_end_ = Clock::time_point::max();
}

void RankSupervisor::Say(const std::string& text) {
  const std::string line = "lathe launch: " + text + '\n';
  if (options_.tag_output) return output_.Say(line);
  // In one piece, so that lines of ranks don't come between.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody reads it
}

}  // namespace lathe
