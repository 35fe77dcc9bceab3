#include "lathe/core/keras_files/confined_child.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

constexpr int kCannotConfine = 100;                // the child's exit code
constexpr size_t kMostMessage = size_t{64} << 20;  // bytes

// --- in the child ---

// Makes the stack large enough for some calls. Later it can't grow if a limit forbids it.
[[gnu::noinline]] void GrowStack() {
  volatile char room[16384];
  room[0] = 1;
  static_cast<void>(room[0]);
}

// Returns the bytes of addresses that this process uses: the lowest limit that leaves it one more
// page. /proc tells the same, but not every system has it mounted.
rlim_t AddressSpace() {
  constexpr rlim_t kMost = rlim_t{1} << 47;
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return 0;
  GrowStack();
  const rlim_t before = limit.rlim_cur, page = static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  rlim_t low = 0, high = std::min(limit.rlim_max, kMost) / page;
  while (low < high) {
    const rlim_t middle = (low + high) / 2;
    limit.rlim_cur = middle * page;
    setrlimit(RLIMIT_AS, &limit);
    void* const more = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) {
      low = middle + 1;
    } else {
      munmap(more, page);
      high = middle;
    }
  }
  limit.rlim_cur = before;
  setrlimit(RLIMIT_AS, &limit);
  return low * page;
}

bool Limit(int resource, rlim_t most) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return false;
  if (most < limit.rlim_max) limit.rlim_max = most;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0;
}

// Jumps over `count` instructions if the accumulator equals `value`.
sock_filter JumpIfEqual(uint32_t value, uint8_t count) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, count, 0);
}
sock_filter LoadWord(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
sock_filter Return(uint32_t action) { return BPF_STMT(BPF_RET | BPF_K, action); }

// Lets the process use the system calls for memory, time and its end; and for writing to the two
// descriptors. Any other call ends the process. It must not make code of data either.
bool FilterSystemCalls(int first, int second) {
  const uint32_t kKill = SECCOMP_RET_KILL_PROCESS, kAllow = SECCOMP_RET_ALLOW;
  const auto argument = [](int i) {
    return offsetof(seccomp_data, args) + sizeof(uint64_t) * static_cast<size_t>(i);
  };
  std::vector<sock_filter> filter = {LoadWord(offsetof(seccomp_data, arch)),
                                     JumpIfEqual(AUDIT_ARCH_X86_64, 1), Return(kKill),
                                     LoadWord(offsetof(seccomp_data, nr))};
  for (const int call :
       {SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise, SYS_futex, SYS_clock_gettime,
        SYS_gettimeofday, SYS_getpid, SYS_gettid, SYS_rt_sigprocmask, SYS_rt_sigreturn,
        SYS_sigaltstack, SYS_sched_yield, SYS_exit, SYS_exit_group}) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    filter.push_back(Return(kAllow));
  }
  for (const int call : {SYS_mmap, SYS_mprotect}) {
    filter.insert(filter.end(),
                  {BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 4),
                   LoadWord(argument(2)), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
                   Return(kKill), Return(kAllow)});
  }
  for (const int call : {SYS_write, SYS_pwrite64}) {
    filter.insert(filter.end(),
                  {BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 5),
                   LoadWord(argument(0)), JumpIfEqual(static_cast<uint32_t>(first), 2),
                   JumpIfEqual(static_cast<uint32_t>(second), 1), Return(kKill), Return(kAllow)});
  }
  filter.push_back(Return(kKill));
  const sock_fprog program = {.len = static_cast<uint16_t>(filter.size()), .filter = filter.data()};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Gives up what the process may do. `parent` is the process that made it.
bool Confine(pid_t parent, int file, int pipe, const ConfinedLimits& limits) {
  for (int number = 1; number < NSIG; ++number) {
    signal(number, number == SIGINT || number == SIGTERM ? SIG_IGN : SIG_DFL);
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) return false;
  const auto seconds = static_cast<rlim_t>(limits.seconds);
  return prctl(PR_SET_DUMPABLE, 0) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         Limit(RLIMIT_CORE, 0) && Limit(RLIMIT_CPU, seconds) &&
         Limit(RLIMIT_FSIZE, static_cast<rlim_t>(limits.written)) &&
         Limit(RLIMIT_AS, AddressSpace() + static_cast<rlim_t>(limits.memory)) &&
         FilterSystemCalls(file, pipe);
}

// --- in the parent ---

using Clock = std::chrono::steady_clock;

// Reads until the child closes the pipe. Returns what is wrong, or "".
std::string ReadAll(int pipe, Clock::time_point deadline, std::string& message) {
  std::array<char, 65536> piece;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return "took too long";
    pollfd waited = {.fd = pipe, .events = POLLIN, .revents = 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready < 0 && errno != EINTR) return "can't be waited for";
    if (ready <= 0) continue;
    const ssize_t size = read(pipe, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return "can't be read from";
    if (size == 0) return "";
    message.append(piece.data(), static_cast<size_t>(size));
    if (message.size() > kMostMessage) return "gave too long an answer";
  }
}

std::string Describe(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    if (number == SIGXCPU) return "took too long";
    if (number == SIGKILL) return "took too long or was killed";
    if (number == SIGXFSZ) return "found more values than the file can have";
    return "crashed (signal " + std::to_string(number) + ")";
  }
  return WEXITSTATUS(status) == 0 ? "" : "failed";
}

Error CannotConfine(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition,
               what + ": this system can't confine the process that would read the file",
               "save the model as safetensors where it can be read");
}

}  // namespace

ConfinedResult RunConfined(const std::string& what, int file, const ConfinedLimits& limits,
                           const std::function<void(int pipe)>& body) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw CannotConfine(what);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    if (!Confine(parent, file, ends[1], limits)) _exit(kCannotConfine);
    body(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  ConfinedResult result;
  if (child > 0) {
    const auto deadline = Clock::now() + std::chrono::seconds(2 * limits.seconds);
    result.failure = ReadAll(ends[0], deadline, result.message);
    if (!result.failure.empty()) kill(child, SIGKILL);
  }
  close(ends[0]);
  if (child < 0) throw CannotConfine(what);
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  // Without a status, as in a program that ignores the ends of its children, the message decides.
  if (ended == child && WIFEXITED(status) && WEXITSTATUS(status) == kCannotConfine) {
    throw CannotConfine(what);
  }
  if (ended == child && result.failure.empty()) result.failure = Describe(status);
  return result;
}

}  // namespace lathe
