// Counts how often attention on a device ran Lathe's own kernels and how often a library's. Tests
// and benchmarks that are meant for one of them check it.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

// Passes (forward or backward) so far in this process. A recorded pass counts when it is recorded,
// not when it is launched.
struct AttentionCounts {
  int64_t own = 0, library = 0;
  std::string why_not_library;  // why own kernels last ran although a library was asked for
};
AttentionCounts GetAttentionCounts();

// Called by the backend, on any thread.
void CountOwnAttention();
void CountLibraryAttention();
// Returns true if that reason is new.
bool NoteWhyNotLibrary(const std::string& why);

}  // namespace lathe
