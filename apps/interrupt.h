// Ctrl-C (SIGINT), SIGTERM, which batch systems send, and SIGHUP, of a lost terminal, as a question
// that loops ask: the first one asks to stop, a later one kills as usual.
#pragma once

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

// 128 + the signal's number, as a shell reports it: 130 for Ctrl-C, 143 for SIGTERM and where it is
// not known (0).
int InterruptedExitCode(int signal_number);

}  // namespace lathe
