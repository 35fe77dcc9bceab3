// Declarations that shared_memory_collectives.cc and shared_memory_mapping.cc share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/distributed/groups/shared_memory_collectives.h"

namespace lathe {

// A rank's part in a call.
struct alignas(64) SharedMemoryCollectives::Part {
  const char* data;
  uint64_t call;  // Call << 56 | the number of bytes
  // If the data lies in memory that the rank exposes: that memory's ExposedMemory::id, and the
  // data's offset in it, in bytes. Otherwise `exposed` is 0.
  uint64_t exposed, begin;
  alignas(64) std::byte small[kSmallBytes];
};

// A rank's state, which all ranks read. `stage` counts up without end. A rank uses its two parts in
// turn. It may begin the next call while others still read its part in this one, but not the call
// after.
struct alignas(64) SharedMemoryCollectives::Slot {
  std::atomic<uint32_t> stage;
  pid_t pid;
  Part parts[2];
};

// Memory that this rank exposes to the others, and its views of the memory that they expose.
struct SharedMemoryCollectives::ExposedMemory {
  uint64_t id;  // the same on all ranks, counted from 1
  std::weak_ptr<Storage> storage;
  size_t bytes;
  std::vector<char*> views;  // by rank; null for this one

  ~ExposedMemory();
};

// Maps a memory file that another process has open. Returns null if that is not possible.
char* MapFileOf(pid_t pid, int file, int64_t bytes, bool writes = true);

}  // namespace lathe
