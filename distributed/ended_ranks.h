// Which ranks of a machine have ended, as their launcher tells those that wait for them to join:
// who has not joined is missed by nobody else.
#pragma once

#include <optional>
#include <string>

#include "lathe/distributed/environment.h"
#include "lathe/distributed/socket.h"

namespace lathe {

// The variable that says where.
inline constexpr char kEndedRanks[] = "LATHE_ENDED_RANKS";

// The launcher's side.
class EndedRanks {
 public:
  EndedRanks();
  void Add(int rank);
  // The variable's value for the ranks of a job that meets at this port; "": nothing can be told.
  std::string Variable(int port) const;

 private:
  Socket memory_;
};

// A rank of this job and machine that has ended; nullopt: none is known of.
std::optional<int> FindEndedRank(const ProcessEnvironment& environment);

}  // namespace lathe
