// What local_reduce.cc and local_share.cc have in common.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/distributed/groups/local_reduce.h"

namespace lathe {

// A rank's part in a call.
struct alignas(64) LocalReduce::Part {
  const char* data;
  uint64_t call;          // which, and of how many bytes
  uint64_t shown, begin;  // in which memory that it shows the data lies, or 0; and where
  alignas(64) std::byte small[kSmallBytes];
};

// What a rank has to say. `stage` counts on without end. Parts are taken in turn: a rank may begin
// the next call while others still read its part in this one, but not the one after.
struct alignas(64) LocalReduce::Slot {
  std::atomic<uint32_t> stage;
  pid_t pid;
  Part parts[2];
};

// What a rank shows of its memory, and what the others show of theirs.
struct LocalReduce::Shown {
  uint64_t id;  // the same on all ranks, from 1
  std::weak_ptr<Storage> storage;
  size_t bytes;
  std::vector<char*> views;  // by rank; null: its own

  ~Shown();
};

// The pages of a memory file that another process has open; null if they can't be had.
char* MapFileOf(pid_t pid, int file, int64_t bytes, bool writes = true);

}  // namespace lathe
