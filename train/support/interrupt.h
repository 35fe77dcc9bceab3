// Turns SIGINT (Ctrl-C), SIGTERM and SIGUSR1 (from batch systems) and SIGHUP (a lost terminal) into
// a question that loops ask. The first signal asks to stop; a later one kills as usual.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace lathe {

void InstallInterruptHandler();
bool Interrupted();
// The number of the latest signal; 0 if none has come.
int InterruptSignal();

// While one exists, none of these signals kills the process, so that a write is completed.
class InterruptShield {
 public:
  InterruptShield();
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;
};

// While one exists, no loop needs to ask, and a signal works whatever this thread waits for. `end`
// is called on another thread with the signal's number: as soon as a signal comes, or at once if
// one has come before. It should end the process. Only one may exist at a time.
class InterruptAlarm {
 public:
  explicit InterruptAlarm(const std::function<void(int signal_number)>& end);
  ~InterruptAlarm();
  InterruptAlarm(const InterruptAlarm&) = delete;
  InterruptAlarm& operator=(const InterruptAlarm&) = delete;

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// Returns 128 + the signal's number, as a shell reports it: 130 for Ctrl-C, 143 for SIGTERM. An
// unknown signal (0) counts as SIGTERM.
int InterruptedExitCode(int signal_number);

}  // namespace lathe
