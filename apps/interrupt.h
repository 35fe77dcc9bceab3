// Ctrl-C as a question that loops ask: the first one asks to stop, a later one kills as usual.
#pragma once

namespace lathe {

void InstallInterruptHandler();
bool Interrupted();

// While one lives, Ctrl-C never kills: what is being written gets whole.
class InterruptShield {
 public:
  InterruptShield();
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;
};

inline constexpr int kInterruptedExitCode = 130;  // 128 + SIGINT, as a shell reports it

}  // namespace lathe
