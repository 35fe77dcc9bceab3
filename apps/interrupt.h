// Ctrl-C as a question that loops ask: the first one asks to stop, the second one kills as usual.
#pragma once

namespace lathe {

void InstallInterruptHandler();
bool Interrupted();

inline constexpr int kInterruptedExitCode = 130;  // 128 + SIGINT, as a shell reports it

}  // namespace lathe
