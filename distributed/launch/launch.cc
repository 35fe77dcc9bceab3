#include "lathe/distributed/launch/launch.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <fcntl.h>
#include <omp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <new>
#include <random>
#include <sstream>
#include <string_view>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/distributed/launch/rank_supervisor.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/rank_end.h"
#include "lathe/distributed/rendezvous/socket.h"

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
  const bool is_path = name.find('/') != std::string::npos;
  int problem = is_path ? check(name) : ENOENT;
  std::string path = name;
  if (!is_path && !name.empty()) {
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
  if (problem == ENOENT && !is_path) {
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

// Returns pointers to the strings, with a null pointer after the last, as execve wants them.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

int LocalProcesses(const LaunchOptions& options) {
  return options.num_processes / options.num_machines;
}

// Returns a name for a job that no other job has.
std::string RandomId() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random()), absl::Hex(random()));
}

// Returns a socket that holds the port where rank 0 is to listen: a free one if the option is 0.
// Nothing else gets the port while the socket lives, but rank 0 can listen there. The socket itself
// doesn't listen: a rank that waits for rank 0 would take it for rank 0. Throws Unavailable or
// InvalidArgument if rank 0 could not listen at its address. Returns no socket on other machines
// than rank 0's.
//
// If the port were only found and given up again, a socket of another job could get it. The ranks
// that look for rank 0 there would then disturb that job.
Socket HoldMainPort(const LaunchOptions& options) {
  if (options.machine_rank != 0) return Socket();
  try {
    return Bind(options.main_process_ip, options.main_process_port);
  } catch (const Error& e) {
    throw e.WithHint(e.code() == absl::StatusCode::kInvalidArgument
                         ? "main_process_ip must be an address of the machine with machine_rank 0"
                     : options.num_machines > 1
                         ? "choose another port with main_process_port, the same on all machines"
                         : "choose another port with main_process_port; 0 takes a free one");
  }
}

// Returns true for a variable by which some launcher tells a process its place in the job.
bool IsPlaceVariable(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"OMPI_COMM_WORLD_", "PMI_", "PMIX_", "TORCHELASTIC_",
                                            "SLURM_STEP_"};
  // NCCL_COMM_ID would make NCCL's ranks meet at another address than the job's.
  constexpr std::string_view kNames[] = {
      "RANK",          "WORLD_SIZE",      "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
      "GROUP_RANK",    "ROLE_RANK",       "ROLE_WORLD_SIZE", "MASTER_ADDR",
      "MASTER_PORT",   "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
      "SLURM_LOCALID", "SLURM_NODEID",    "NCCL_COMM_ID"};
  return std::ranges::count(kNames, name) > 0 ||
         std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

using Environment = std::map<std::string, std::string>;  // variables by their names

// Returns the variables that are the same for all ranks of this machine. They are those of this
// process without its own place in a job, those of the job, and the options'. Rank 0 is to listen
// at `port`.
Environment JobEnvironment(const LaunchOptions& options, const EndedRanksRecord& ended, int port) {
  Environment environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    if (equals != text.npos && !IsPlaceVariable(name))
      environment.emplace(name, text.substr(equals + 1));
  }
  const int local_size = LocalProcesses(options);
  environment["WORLD_SIZE"] = std::to_string(options.num_processes);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(local_size);
  environment["MASTER_ADDR"] = options.main_process_ip;
  environment["MASTER_PORT"] = std::to_string(port);
  environment[kEndedRanksVariable] = ended.Variable(port);
  // All machines must choose the same job name without having communicated.
  if (options.num_machines == 1) {
    environment["LATHE_JOB_ID"] = RandomId();
  } else if (!OwnVariable("LATHE_JOB_ID")) {
    environment["LATHE_JOB_ID"] = AddressText(options.main_process_ip, port);
  }
  const int threads = options.num_threads_per_process;
  if (threads > 0 || !OwnVariable("OMP_NUM_THREADS")) {
    const int share = std::max(UsableCores() / local_size, 1);
    environment["OMP_NUM_THREADS"] = std::to_string(threads > 0 ? threads : share);
  }
  for (const auto& [name, value] : options.environment) environment[name] = value;
  return environment;
}

// Calls `start(rank, variables)` for each rank of this machine. Returns the socket of HoldMainPort,
// which the caller keeps until the ranks have ended.
[[nodiscard]] Socket StartRanks(
    const LaunchOptions& options, const EndedRanksRecord& ended,
    const std::function<void(int rank, const Environment& environment)>& start) {
  Socket main_port = HoldMainPort(options);
  Environment environment =
      JobEnvironment(options, ended, main_port ? LocalPort(main_port) : options.main_process_port);
  const int local_size = LocalProcesses(options);
  for (int local_rank = 0; local_rank < local_size; ++local_rank) {
    const int rank = options.machine_rank * local_size + local_rank;
    environment["RANK"] = std::to_string(rank);
    environment["LOCAL_RANK"] = std::to_string(local_rank);
    start(rank, environment);
  }
  return main_port;
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

// Runs the program once on each rank of this machine, and waits for the ends.
int RunOnce(const std::string& program, char* const* arguments, const LaunchOptions& options,
            RankSupervisor& supervisor) {
  // If exec succeeds, the child's end of the pipe closes (O_CLOEXEC). If it fails, the child writes
  // errno into the pipe.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw FileError("pipe", errno);
  const FileDescriptor in(ends[0]);
  FileDescriptor out(ends[1]);
  const auto start = [&](int rank, const Environment& environment) {
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    const std::vector<char*> pointers = Pointers(variables);
    supervisor.Start(rank, [&] {
      execve(program.c_str(), arguments, pointers.data());
      const int problem = errno;
      _exit(write(out.fd(), &problem, sizeof problem) == sizeof problem ? 126 : 127);
    });
  };
  const Socket main_port = StartRanks(options, supervisor.ended(), start);
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
    constexpr std::chrono::milliseconds kFirst(100), kLongest(10'000);
    const bool is_own_error = exit_code == kOwnErrorCode;
    const bool is_quick = lasted < std::chrono::seconds(10);
    own_errors_ = is_own_error ? own_errors_ + 1 : 0;
    // A signal to one rank, or to another machine's launcher, stops the whole job, too.
    const bool stopped =
        by_signal || std::ranges::count(kPassedOnSignals, exit_code - kSignalExitCode) > 0;
    if (exit_code == 0 || exit_code == kUsageCode || stopped) return false;
    // See LaunchOptions::max_restarts. The pause is long if a job that has worked before reports an
    // error of its own: a full disk, for example, may have space then.
    pause_ = is_quick && pause_ != pause_.zero() ? std::min(2 * pause_, kLongest) : kFirst;
    has_worked_ = has_worked_ || !is_quick || !is_own_error;
    if (is_own_error && has_worked_) pause_ = kLongest;
    return own_errors_ < kMostOwnErrors && restarts_++ < max_restarts_;
  }
  int restarts() const { return restarts_; }
  std::chrono::milliseconds pause() const { return pause_; }  // before the next start

 private:
  const int max_restarts_;
  int restarts_ = 0, own_errors_ = 0;
  bool has_worked_ = false;  // as far as the launcher can tell
  std::chrono::milliseconds pause_{0};
};

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

int LaunchProgram(const std::vector<std::string>& command, const LaunchOptions& given) {
  CheckLaunchOptions(given);
  if (command.empty()) throw InvalidArgument("[launch] the command is empty");
  const std::string program = FindProgram(command[0]);
  std::vector<std::string> words = command;
  const std::vector<char*> arguments = Pointers(words);
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
    const int exit_code = RunOnce(program, arguments.data(), options, supervisor);
    const auto lasted = std::chrono::steady_clock::now() - start;
    if (!policy.StartsAgain(exit_code, supervisor.ended_by_signal(), lasted)) return exit_code;
    if (options.restart_with_ranks_left) {
      options.num_processes =
          std::max(1, options.num_processes - std::max(1, supervisor.num_failed_alone()));
      options.environment.emplace_back(kBatchProcessesVariable,
                                       std::to_string(given.num_processes));
    }
    options.environment.emplace_back(kRestartsVariable, std::to_string(policy.restarts()));
    std::cerr << "lathe launch: starting the job again with " << options.num_processes
              << (options.num_processes == 1 ? " process" : " processes") << ", restart "
              << policy.restarts() << " of " << options.max_restarts << std::endl;
    const int signal_number = signals.WaitFor(policy.pause());
    if (signal_number == 0) continue;
    std::cerr << "lathe launch: " << SignalText(signal_number)
              << " came before that, so the job is not started again" << std::endl;
    return kSignalExitCode + signal_number;
  }
}

int Launch(const std::function<void()>& function, int num_processes, LaunchOptions options) {
  options.num_processes = num_processes;
  CheckLaunchOptions(options);
  if (num_processes == 1) {
    function();
    return 0;
  }
  const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  if (threads > 1) {
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
  const auto start = [&](int rank, const Environment& environment) {
    supervisor.Start(rank, [&] {
      clearenv();
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      // OpenMP has read OMP_NUM_THREADS long before.
      if (const int num = std::atoi(std::getenv("OMP_NUM_THREADS")); num > 0)
        omp_set_num_threads(num);
      const int exit_code = RunFunction(function, rank);
      std::fflush(nullptr);
      _exit(exit_code);
    });
  };
  const Socket main_port = StartRanks(options, supervisor.ended(), start);
  return supervisor.Wait();
}

}  // namespace lathe
