#include "lathe/apps/interrupt.h"

#include <signal.h>

namespace lathe {
namespace {
volatile sig_atomic_t interrupted = 0;
}  // namespace

void InstallInterruptHandler() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  // RESETHAND: the second one finds the default action. RESTART: a write that is under way goes on.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

}  // namespace lathe
