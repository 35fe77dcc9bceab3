#include "lathe/distributed/launch/launch.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <new>
#include <sstream>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/distributed/launch/rank_environment.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/distributed/rendezvous/rank_end.h"

namespace lathe {
namespace {

// Returns the file that a shell would run for this name.
std::string FindProgram(const std::string& name) {
  const auto check = [](const std::string& path) -> int {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return errno;
    if (S_ISDIR(info.st_mode)) return EISDIR;
    return access(path.c_str(), X_OK) == 0 ? 0 : errno;
  };
  int problem = ENOENT;
  std::string path = name;
  if (name.find('/') != std::string::npos) {
    problem = check(path);
  } else if (!name.empty()) {
    const char* folders = std::getenv("PATH");
    std::istringstream list(folders == nullptr ? "/usr/bin:/bin" : folders);
    for (std::string folder; problem != 0 && std::getline(list, folder, ':');) {
      const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
      const int found = check(candidate);
      if (found == 0 || found == EACCES) {
        problem = found;
        path = candidate;
      }
    }
  }
  if (problem == 0) return path;
  if (problem == ENOENT && name.find('/') == std::string::npos) {
    const bool here = check("./" + name) == 0;
    throw NotFound("there is no program \"" + name + "\" in PATH",
                   here ? "did you mean ./" + name + "?" : "check its name, or give its path");
  }
  if (problem == EISDIR) {
    throw InvalidArgument(path + " is a folder, not a program", "name a program in it");
  }
  if (problem == EACCES) {
    throw Error(
        absl::StatusCode::kPermissionDenied, path + " is not executable",
        "run chmod +x " + path + ", or name its interpreter first, such as bash or python3");
  }
  throw FileError(path, problem);
}

// An array of C strings, owned by this object, with a null pointer after the last.
class CStrings {
 public:
  explicit CStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
    for (std::string& s : strings_) pointers_.push_back(s.data());
    pointers_.push_back(nullptr);
  }
  CStrings(const CStrings&) = delete;
  CStrings& operator=(const CStrings&) = delete;
  char** data() { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

// Starts this machine's ranks. `body(rank, variables)` returns the function that a rank runs. The
// caller keeps `main_port` (HoldMainPort) until they have ended.
void StartRanks(RankSupervisor& supervisor, const LaunchOptions& options, const Socket& main_port,
                const std::function<std::function<void()>(int rank, const Environment&)>& body) {
  const Environment job = JobEnvironment(options, supervisor.ended(), main_port);
  const int local_size = LocalProcesses(options);
  for (int local_rank = 0; local_rank < local_size; ++local_rank) {
    const int rank = options.machine_rank * local_size + local_rank;
    supervisor.Start(rank, body(rank, RankEnvironment(job, rank, local_rank)));
  }
}

// Prints one line for the message and one for the hint, in one write, so that lines of other ranks
// don't come between. Returns exit code 1.
int ReportError(int rank, std::string message, std::string hint = "") {
  for (std::string* text : {&message, &hint}) absl::StrReplaceAll({{"\n", " "}, {"\r", " "}}, text);
  std::string lines = "error: rank " + std::to_string(rank) + ": " + message + '\n';
  if (!hint.empty()) lines += "hint: " + hint + '\n';
  std::cout.flush();
  if (write(STDERR_FILENO, lines.data(), lines.size()) < 0) return 1;  // nobody reads it
  return 1;
}

int RunFunction(const std::function<void()>& function, int rank) {
  try {
    function();
    if (!std::cout.flush() || std::fflush(stdout) != 0) {
      return ReportError(rank, "standard output: cannot be written");
    }
    EndRank();  // leaves the job, so that the other ranks don't take this one for lost
    return 0;
  } catch (const Error& e) {
    const LostRanks* lost = FindLostRanks(e);
    if (lost == nullptr || ShouldReportLostRanks(*lost, ReadProcessEnvironment()))
      ReportError(rank, e.message(), e.hint());
    return lost == nullptr ? 1 : kLostRankExitCode;
  } catch (const std::bad_alloc&) {
    return ReportError(rank, "out of memory");
  } catch (const std::exception& e) {
    return ReportError(rank, e.what());
  } catch (...) {
    return ReportError(rank, "an exception of unknown type");
  }
}

int CountThreads() {
  namespace fs = std::filesystem;
  return static_cast<int>(std::distance(fs::directory_iterator("/proc/self/task"), {}));
}

}  // namespace

void CheckLaunchOptions(const LaunchOptions& options) {
  const auto check = [](const char* name, int value, int low, int high, const char* hint = "") {
    if (value >= low && value <= high) return;
    throw InvalidArgument(
        absl::StrCat(name, " must be from ", low, " to ", high, " but is ", value), hint);
  };
  check("num_processes", options.num_processes, 1, kMostProcesses);
  check("num_machines", options.num_machines, 1, kMostProcesses);
  check("main_process_port", options.main_process_port, 0, kLargestPort);
  check("num_threads_per_process", options.num_threads_per_process, 0, kMostProcesses);
  check("max_restarts", options.max_restarts, 0, 1 << 20);
  if (options.restart_with_ranks_left && options.num_machines > 1) {
    throw InvalidArgument("restart_processes any works on one machine only",
                          "leave it out: each machine then starts all of its processes again");
  }
  check("machine_rank", options.machine_rank, 0, options.num_machines - 1,
        "machines are numbered from 0; num_machines says how many there are");
  if (options.num_processes % options.num_machines != 0) {
    throw InvalidArgument(absl::StrCat("num_processes is ", options.num_processes, ", which ",
                                       options.num_machines, " machines can't share evenly"),
                          "num_processes counts the processes of all machines together");
  }
  if (options.num_machines > 1 && options.main_process_port == 0) {
    throw InvalidArgument("main_process_port must be given if there are several machines",
                          "choose one that is free on the machine with machine_rank 0");
  }
  if (options.num_gpus > 0 && LocalProcesses(options) > options.num_gpus) {
    throw InvalidArgument(
        absl::StrCat("there are ", LocalProcesses(options), " processes but ", options.num_gpus,
                     options.num_gpus == 1 ? " GPU" : " GPUs", " on this machine"),
        "start at most one process for each GPU, or compute on the CPU (" + OptionName("cpu") +
            ")");
  }
}

namespace {

// Runs the program once on each rank of this machine, and waits for the ends.
int RunOnce(const std::string& program, CStrings& arguments, const LaunchOptions& options,
            RankSupervisor& supervisor) {
  // If exec succeeds, the child's end of the pipe closes (O_CLOEXEC). If it fails, the child writes
  // errno into the pipe.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw FileError("pipe", errno);
  const FileDescriptor in(ends[0]);
  FileDescriptor out(ends[1]);
  const Socket main_port = HoldMainPort(options);
  StartRanks(supervisor, options, main_port, [&](int, const Environment& environment) {
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    const auto shared = std::make_shared<CStrings>(std::move(variables));
    return [&, shared] {
      execve(program.c_str(), arguments.data(), shared->data());
      const int problem = errno;
      _exit(write(out.fd(), &problem, sizeof problem) == sizeof problem ? 126 : 127);
    };
  });
  out = FileDescriptor();
  int problem = 0;
  if (read(in.fd(), &problem, sizeof problem) == sizeof problem) {
    throw Error(absl::ErrnoToStatusCode(problem),
                program + " cannot be started: " + std::strerror(problem),
                problem == ENOEXEC  ? "a script needs a first line that starts with #!"
                : problem == ENOENT ? "is the interpreter in its first line installed?"
                                    : "");
  }
  return supervisor.Wait();
}

// Decides whether and when a job that has failed is started again.
class RestartPolicy {
 public:
  explicit RestartPolicy(int max_restarts) : max_restarts_(max_restarts) {}
  // `lasted` is the time from the start to the failure.
  bool StartsAgain(int exit_code, bool by_signal, std::chrono::steady_clock::duration lasted) {
    constexpr int kUsageCode = 2, kOwnErrorCode = 1, kMostOwnErrors = 3;
    const bool is_own_error = exit_code == kOwnErrorCode;
    own_errors_ = is_own_error ? own_errors_ + 1 : 0;
    // A signal to one rank, or to another machine's launcher, stops the whole job, too.
    const bool stopped = std::ranges::any_of(std::array{SIGINT, SIGTERM, SIGHUP, SIGUSR1},
                                             [&](int s) { return exit_code == 128 + s; });
    if (exit_code == 0 || exit_code == kUsageCode || by_signal || stopped) return false;
    ChoosePause(is_own_error, lasted);
    return own_errors_ < kMostOwnErrors && restarts_++ < max_restarts_;
  }
  int restarts() const { return restarts_; }
  std::chrono::milliseconds pause() const { return pause_; }  // before the next start

 private:
  // The pause is 0.1 s at first. It doubles each time that the job has lasted less than 10 s, up to
  // 10 s. If a job that has worked before reports an error of its own, the pause is 10 s: a full
  // disk, for example, may have space then.
  void ChoosePause(bool is_own_error, std::chrono::steady_clock::duration lasted) {
    constexpr std::chrono::milliseconds kFirst(100), kLongest(10'000);
    const bool is_quick = lasted < std::chrono::seconds(10);
    pause_ = is_quick && pause_ != pause_.zero() ? std::min(2 * pause_, kLongest) : kFirst;
    has_worked_ = has_worked_ || !is_quick || !is_own_error;
    if (is_own_error && has_worked_) pause_ = kLongest;
  }

  const int max_restarts_;
  int restarts_ = 0, own_errors_ = 0;
  bool has_worked_ = false;  // as far as the launcher can tell
  std::chrono::milliseconds pause_{0};
};

}  // namespace

int LaunchProgram(const std::vector<std::string>& command, const LaunchOptions& given) {
  CheckLaunchOptions(given);
  if (command.empty()) throw InvalidArgument("[launch] the command is empty");
  const std::string program = FindProgram(command[0]);
  CStrings arguments(command);
  LaunchOptions options = given;
  // The job keeps its name, by which it knows its own checkpoints again.
  if (options.max_restarts > 0 && options.num_machines == 1)
    options.environment.emplace_back("LATHE_JOB_ID", RandomId());
  if (options.max_restarts > 0)
    options.environment.emplace_back(kMaxRestartsVariable, std::to_string(options.max_restarts));
  RestartPolicy policy(options.max_restarts);
  WatchedSignals signals;
  for (;;) {
    const auto start = std::chrono::steady_clock::now();
    RankSupervisor supervisor(options.supervisor, signals);
    const int exit_code = RunOnce(program, arguments, options, supervisor);
    const auto lasted = std::chrono::steady_clock::now() - start;
    if (!policy.StartsAgain(exit_code, supervisor.ended_by_signal(), lasted)) return exit_code;
    if (options.restart_with_ranks_left) {
      options.num_processes =
          std::max(1, options.num_processes - std::max(1, supervisor.CountFailedAlone()));
      options.environment.emplace_back(kBatchProcessesVariable,
                                       std::to_string(given.num_processes));
    }
    options.environment.emplace_back(kRestartsVariable, std::to_string(policy.restarts()));
    std::cerr << "lathe launch: starting the job again with " << options.num_processes
              << (options.num_processes == 1 ? " process" : " processes") << ", restart "
              << policy.restarts() << " of " << options.max_restarts << std::endl;
    const int signal_number = signals.WaitFor(policy.pause());
    if (signal_number == 0) continue;
    std::cerr << "lathe launch: signal " << signal_number << " (" << strsignal(signal_number)
              << ") came before that, so the job is not started again" << std::endl;
    return 128 + signal_number;
  }
}

int Launch(const std::function<void()>& function, int num_processes, LaunchOptions options) {
  options.num_processes = num_processes;
  CheckLaunchOptions(options);
  if (num_processes == 1) {
    function();
    return 0;
  }
  if (const int threads = CountThreads(); threads > 1) {
    throw Error(absl::StatusCode::kFailedPrecondition,
                "[launch] this process has " + std::to_string(threads) +
                    " threads; forked ranks would lack them and wait for them forever",
                "call Launch before anything that uses OpenMP or starts threads, or start the "
                "program with `lathe launch`");
  }
  std::cout.flush();  // otherwise each rank would print again what is buffered here
  std::fflush(nullptr);
  WatchedSignals signals;
  RankSupervisor supervisor(options.supervisor, signals);
  const Socket main_port = HoldMainPort(options);
  StartRanks(supervisor, options, main_port, [&](int rank, const Environment& environment) {
    return [&function, rank, environment] {
      clearenv();
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      // OpenMP has read OMP_NUM_THREADS long before.
      if (const int threads = std::atoi(std::getenv("OMP_NUM_THREADS")); threads > 0) {
        omp_set_num_threads(threads);
      }
      const int exit_code = RunFunction(function, rank);
      std::fflush(nullptr);
      _exit(exit_code);
    };
  });
  return supervisor.Wait();
}

}  // namespace lathe
