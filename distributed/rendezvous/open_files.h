// How many files and connections this process may have open at once (RLIMIT_NOFILE).
#pragma once

#include <cstdint>

namespace lathe {

// Raises this process's limit as far as it may go without rights of an administrator. Returns it.
int64_t RaiseOpenFileLimit();

// Raises the limit. Throws FailedPrecondition if that is not enough for a rank of a job: `rank 0 of
// 512 may open 1024 files but needs about 1664`. Rank 0 serves the store, to which every rank has
// two connections. Each rank is also connected to each other one.
void RequireOpenFiles(int rank, int world_size);

}  // namespace lathe
