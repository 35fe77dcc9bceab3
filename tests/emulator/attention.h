// Stands for cuDNN's attention: computes on the host, from the offsets that the device has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/core/cuda/attention_library.h"

namespace lathe::emulator {

// What there is, for tests to change.
struct StandInAttention {
  std::string missing;             // why there is no library
  int64_t largest_head_dim = 128;  // of problems that it takes
  int64_t workspace_bytes = 1000;
  int64_t microseconds = 20;  // that a run takes; own kernels take 10 a launch
  bool fails = false;         // when it runs
  // Writes NaN into the rows of a tile behind the last sequence; there must be so many.
  int64_t spoiled_rows = 0;
  // What has been done.
  std::vector<cuda::AttentionProblem> built;
  int64_t runs = 0;            // recorded ones count each time they are done
  std::vector<int64_t> seeds;  // of runs with dropout
};
StandInAttention& TheStandInAttention();

}  // namespace lathe::emulator
