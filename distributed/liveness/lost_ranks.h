// What becomes of a rank that can't go on because of another one: of all that the loss of one rank
// ends, one on each machine tells of it, and the launcher looks for the cause elsewhere.
#pragma once

#include <string>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// Of a rank that ends because it has lost another: sysexits.h's EX_TEMPFAIL.
inline constexpr int kLostRankExitCode = 75;

// The hints of a process group's errors.
inline constexpr char kLostRankHint[] = "look at what that rank printed last";
inline constexpr char kLostWhileJoiningHint[] =
    "look at what that rank printed last, and start all again";

// "rank 2", "ranks 0, 2".
std::string NamesOf(const std::vector<int>& ranks);

// What a process group's error, `[all_reduce] rank 2 can't go on: rank 0 has ended`, says of
// others.
struct LostRanks {
  std::vector<int> ranks;  // that it blames; none: the error is about something else
  bool hang = false;       // some of them don't answer
};
LostRanks FindLostRanks(const Error& error);

// The ranks of this process's machine, ascending: as it has been told, or else a guess from its
// environment, that they follow each other.
std::vector<int> LocalRanks();
void NoteLocalRanks(std::vector<int> ranks);

// Whether this rank tells of its loss: as the first of those of its machine that is left, unless
// all that it says is that ranks of the same machine have ended that have told why. May take
// seconds, if ranks hang.
bool TellsOfLostRanks(const Error& error, const ProcessEnvironment& environment);

}  // namespace lathe
