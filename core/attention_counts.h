// Which kernels attention ran on a device: for tests and benchmarks that mean one of them.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

// Passes so far in this process, recorded ones as often as they were recorded.
struct AttentionCounts {
  int64_t own = 0, library = 0;
  std::string why_own;  // the last reason for which a library that was asked could not serve
};
AttentionCounts CountAttention();

// Called by the backend. Any thread may call.
void CountOwnAttention();
void CountLibraryAttention();
// Returns whether that reason is new.
bool NoteWhyOwnAttention(const std::string& why);

}  // namespace lathe
