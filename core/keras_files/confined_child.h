// Runs code that reads a file from outside in a child process, so that a mistake in it costs no
// more than an error message. The child may compute, allocate memory and write to two descriptors,
// and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lathe {

struct ConfinedLimits {
  int64_t memory = 0;   // bytes, beyond what this process has
  int64_t written = 0;  // bytes of a descriptor's file
  int64_t seconds = 0;  // of CPU time; twice as much by the clock
};

// What the child gave back.
struct ConfinedResult {
  std::string message;  // what it wrote to `pipe`
  std::string failure;  // what went wrong, such as "crashed (signal 11)"; empty if nothing did
};

// Runs `body` in a child. It writes its result to `pipe`, and may write to `file`, which the child
// shares with this process. It must not throw, and must need no system call but those for memory
// and for writing. Throws FailedPrecondition that begins with `what` if the system can't confine a
// process.
ConfinedResult RunConfined(const std::string& what, int file, const ConfinedLimits& limits,
                           const std::function<void(int pipe)>& body);

}  // namespace lathe
