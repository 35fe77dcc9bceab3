// Decides how a rank ends that can't go on because it has lost another one. Among the ranks of a
// machine that end so, one reports the error. The launcher looks for the cause elsewhere (see
// rank_supervisor.h).
#pragma once

#include <string>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// The exit code of a rank that ends because it has lost another: EX_TEMPFAIL of sysexits.h.
inline constexpr int kLostRankExitCode = 75;

// The hints in a process group's errors.
inline constexpr char kLostRankHint[] = "look at what that rank printed last";
inline constexpr char kLostWhileJoiningHint[] =
    "look at what that rank printed last, and start all again";

// Returns "rank 2", or "ranks 0, 2".
std::string NamesOf(const std::vector<int>& ranks);

// The ranks that a process group's error blames, such as `[all_reduce] rank 2 can't go on: rank 0
// has ended`.
struct LostRanks {
  std::vector<int> ranks;  // empty if the error is about something else
  bool hang = false;       // true if some of them don't answer
};
LostRanks FindLostRanks(const Error& error);

// LocalRanks returns the ranks on this process's machine, ascending. NoteLocalRanks sets them;
// before, they are a guess from the environment, which assumes that they are consecutive.
std::vector<int> LocalRanks();
void NoteLocalRanks(std::vector<int> ranks);

// Returns true if this rank is to report that it has lost other ranks. The lowest rank that is left
// on each machine reports it. It doesn't if its error only says that ranks of the same machine have
// ended, and all of them have reported why. May take seconds if ranks hang.
bool TellsOfLostRanks(const Error& error, const ProcessEnvironment& environment);

}  // namespace lathe
