#include "lathe/train/support/interrupt.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

// Signals within this time after the first count as one request: a key may be held down, or pressed
// twice in haste.
constexpr time_t kOneRequestSeconds = 1;

volatile sig_atomic_t interrupted = 0;  // the signal's number
volatile sig_atomic_t shields = 0;
volatile time_t first_second = 0;
// An eventfd that alarms read. It is never closed, because a handler may run late.
volatile sig_atomic_t alarm_fd = -1;

void WakeAlarms() {
  const int before = errno;  // a handler must not change errno
  const uint64_t one = 1;
  while (write(alarm_fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = before;
}

void HandleInterrupt(int signal_number) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (interrupted == 0) first_second = now.tv_sec;
  interrupted = signal_number;
  if (alarm_fd >= 0) WakeAlarms();
  if (shields > 0 || now.tv_sec - first_second <= kOneRequestSeconds) return;
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

void InstallInterruptHandler() {
  // The handler runs on a stack of its own, which is set for this thread. On the thread's own
  // stack, a signal during one of oneDNN's generated products corrupted the heap in one of about 60
  // runs. It seemed that the product kept something below the stack pointer. With AMX, a signal's
  // frame takes about 11 KiB.
  alignas(64) static char handler_stack[64 << 10];
  const stack_t stack = {.ss_sp = handler_stack, .ss_flags = 0, .ss_size = sizeof handler_stack};
  sigaltstack(&stack, nullptr);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    sigaction(signal_number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;  // nohup and a shell's background jobs want this
    action.sa_handler = HandleInterrupt;
    action.sa_flags = SA_RESTART | SA_ONSTACK;  // a write that is under way goes on
    sigaction(signal_number, &action, nullptr);
  }
}

bool Interrupted() { return interrupted != 0; }

int InterruptSignal() { return interrupted; }

int InterruptedExitCode(int signal_number) {
  return 128 + (signal_number != 0 ? signal_number : SIGTERM);
}

InterruptAlarm::InterruptAlarm(const std::function<void(int)>& end) {
  if (alarm_fd < 0) alarm_fd = eventfd(0, EFD_CLOEXEC);
  if (alarm_fd < 0) throw FileError("eventfd", errno);
  thread_ = std::thread([this, end] {
    uint64_t wakes = 0;
    while (!over_ && !Interrupted()) {
      if (read(alarm_fd, &wakes, sizeof wakes) < 0 && errno != EINTR) return;
    }
    if (!over_) end(InterruptSignal());
  });
}

InterruptAlarm::~InterruptAlarm() {
  over_ = true;
  WakeAlarms();
  thread_.join();
}

InterruptShield::InterruptShield() { shields = shields + 1; }
InterruptShield::~InterruptShield() { shields = shields - 1; }

}  // namespace lathe
