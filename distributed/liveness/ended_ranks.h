// Which ranks of a machine have ended, as their launcher tells those that wait for them to join:
// who has not joined is missed by nobody else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

// The variable that says where.
inline constexpr char kEndedRanks[] = "LATHE_ENDED_RANKS";

// The launcher's side.
class EndedRanks {
 public:
  EndedRanks();
  void Add(int rank, int exit_code);
  // The variable's value for the ranks of a job that meets at this port; "": nothing can be told.
  std::string Variable(int port) const;

 private:
  Socket memory_;
};

struct EndedRank {
  int rank, exit_code;  // 128 + signal
};
// Those of this job and machine, in the order in which they ended, as far as they are known.
std::vector<EndedRank> FindEndedRanks(const ProcessEnvironment& environment);
// Whether that rank of this machine has failed by itself, with an error of its own, rather than
// been killed. Waits half a second for its launcher to know; false where nobody does.
bool HasTold(const ProcessEnvironment& environment, int rank);
// Of an error before the ranks have found each other, which most have alike: whether the first of
// this machine has told its own. Waits as HasTold, three times as long.
bool LocalMainHasTold(const ProcessEnvironment& environment);
// Whether none of these ranks of this machine, which should end as this one does because another
// rank hangs, does so by itself in 3 s: they hang, unless that takes one so long. False where
// nobody knows.
bool StayAfterAHang(const ProcessEnvironment& environment, const std::vector<int>& ranks);
// The first of FindEndedRanks.
std::optional<int> FindEndedRank(const ProcessEnvironment& environment);

}  // namespace lathe
