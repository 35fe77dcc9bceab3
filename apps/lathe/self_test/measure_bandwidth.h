// `lathe test --bandwidth`: the speed of the collectives between the ranks of a job.
#pragma once

#include <cstdint>
#include <ostream>

#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// The sizes begin with kLeastBytes and grow by a factor of 4.
constexpr int64_t kLeastBytes = 1 << 10, kMostBytes = 256 << 20;

// Measures the collectives that training makes, each with data of several sizes, up to `max_bytes`.
// All ranks call it. `out` gets a table like that of nccl-tests. The size is that of the whole
// data. The time is that of one call on the slowest rank. The algorithm bandwidth is size / time.
// The bus bandwidth is what a link carries if there is one between any two ranks. With n ranks it
// is 2 (n - 1) / n times as much for all-reduce. For reduce-scatter and all-gather it is
// (n - 1) / n times as much, and for broadcast the same. Throws if a collective gives a wrong
// result, and on all ranks if they differ in `max_bytes`.
void MeasureBandwidth(ProcessGroup& group, int local_rank, int64_t max_bytes, std::ostream& out);

}  // namespace lathe
