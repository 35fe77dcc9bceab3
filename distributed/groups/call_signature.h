// What ranks compare when they begin a call, so that calls that don't match end with an error.
#pragma once

#include <absl/strings/str_join.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

enum class Call : int32_t {
  kAllGather,
  kAllGatherStripes,
  kAllReduce,
  kBarrier,
  kBroadcast,
  kExposeMemory,
  kReduceScatter,
  kShareMemory,
};

struct CallSignature {
  Call call{};
  int32_t dtype = -1, op = -1, root = -1;  // where the call has them
  uint64_t bytes = 0;
  uint64_t sequence = 0;  // the number of this rank's calls before this one
};

// In what the calls of some ranks differ, as bits; 0 if they are alike.
using Differences = uint64_t;
inline Differences Compare(const CallSignature& a, const CallSignature& b) {
  return Differences{a.call != b.call} | Differences{a.bytes != b.bytes} << 1 |
         Differences{a.dtype != b.dtype} << 2 | Differences{a.op != b.op} << 3 |
         Differences{a.root != b.root} << 4 | Differences{a.sequence != b.sequence} << 5;
}

// Returns the names of the differences: "sizes, dtypes".
inline std::string NamesOf(Differences differences) {
  constexpr const char* kNames[] = {"kinds of data", "sizes", "dtypes",
                                    "operations",    "roots", "sequence numbers"};
  std::vector<std::string> names;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (differences >> i & 1) names.emplace_back(kNames[i]);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace lathe
