// Stands in for cuDNN's attention: computes on the host, from the offsets that the device has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/core/cuda/attention/attention_library.h"

namespace lathe::emulator {

// The stand-in's properties, which tests may change.
struct StandInAttention {
  std::string missing;             // why there is no library; empty if there is one
  int64_t largest_head_dim = 128;  // of the problems that it takes
  int64_t workspace_bytes = 1000;
  int64_t microseconds = 20;  // that a run takes; a launch of Lathe's kernels takes 10
  bool fails = false;         // every run throws
  // A run writes NaN into so many rows behind the last sequence; the operands must have them.
  int64_t spoiled_rows = 0;
  // Records of what was done.
  std::vector<cuda::AttentionProblem> built;
  int64_t runs = 0;            // recorded runs count each time they are done
  std::vector<int64_t> seeds;  // of the runs with dropout
};
StandInAttention& TheStandInAttention();

}  // namespace lathe::emulator
