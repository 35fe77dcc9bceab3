// A record of the ranks of this machine that have ended. The launcher writes it and its ranks read
// it. Ranks that wait for others to join need it: nothing else shows that a rank has ended before
// it joined.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

// The environment variable that tells ranks where the record is.
inline constexpr char kEndedRanksVariable[] = "LATHE_ENDED_RANKS";

// The launcher's side of the record.
class EndedRanksRecord {
 public:
  EndedRanksRecord();
  void Add(int rank, int exit_code);
  // The value of the variable for ranks of a job that meets at this port; "" if there is no record.
  std::string Variable(int port) const;

 private:
  Socket memory_;
};

struct EndedRank {
  int rank, exit_code;  // 128 + signal if one ended it
};
// Returns the ended ranks of this job and machine that are known, in the order in which they ended.
// Returns nullopt if no launcher keeps a record of them. One that belongs to a job around this one,
// which meets at another port, doesn't count.
std::optional<std::vector<EndedRank>> FindEndedRanks(const ProcessEnvironment& environment);
// Returns the first of FindEndedRanks; nullopt if there is none.
std::optional<int> FindFirstEndedRank(const ProcessEnvironment& environment);

}  // namespace lathe
