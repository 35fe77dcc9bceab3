// Ctrl-C (SIGINT), SIGTERM, which batch systems send, and SIGHUP, of a lost terminal, as a question
// that loops ask: the first one asks to stop, a later one kills as usual.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace lathe {

void InstallInterruptHandler();
bool Interrupted();
// The latest's number; 0: none has come.
int InterruptSignal();

// While one lives, none of them kills: what is being written gets whole.
class InterruptShield {
 public:
  InterruptShield();
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;
};

// While one lives, nobody need ask: `end` is called on another thread with the signal's number, as
// soon as one comes or if one has come before, whatever this thread waits for. It is meant to end
// the process. One at a time.
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

// 128 + the signal's number, as a shell reports it: 130 for Ctrl-C, 143 for SIGTERM and where it is
// not known (0).
int InterruptedExitCode(int signal_number);

}  // namespace lathe
