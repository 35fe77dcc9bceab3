// Declarations that local_ranks.cc and local_ranks_mapping.cc share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/distributed/groups/local_ranks.h"

namespace lathe {

// What a rank has published.
struct alignas(64) LocalRanks::Part {
  const char* data;
  CallSignature signature;
  // If the data lies in memory that the rank exposes: that memory's ExposedMemory::id, and the
  // data's offset in it, in bytes. Otherwise `exposed` is 0.
  uint64_t exposed, begin;
  alignas(64) std::byte small[kSmallBytes];
};

// A rank's state, which all ranks read. `stage` counts up without end. A rank uses its two parts in
// turn. It may publish the next time while others still read its part, but not the time after.
struct alignas(64) LocalRanks::Slot {
  std::atomic<uint32_t> stage;
  pid_t pid;
  Part parts[2];
};

// Memory that this rank exposes to the others, and its views of the memory that they expose.
struct LocalRanks::ExposedMemory {
  uint64_t id;  // the same on all ranks, counted from 1
  std::weak_ptr<Storage> storage;
  size_t bytes;
  std::vector<char*> views;  // by place; null for this one

  ~ExposedMemory();
};

// Maps a memory file that another process has open. Returns null if that is not possible.
char* MapFileOf(pid_t pid, int file, int64_t bytes, bool writes = true);

}  // namespace lathe
