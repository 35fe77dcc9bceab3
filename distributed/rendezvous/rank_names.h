// The names of ranks, for messages and in the store.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// Returns "rank 2". A rank's connection to the store has this name, too (Store::kGone).
std::string RankName(int rank);
// Returns "rank 2", or "ranks 0, 2".
std::string RankNames(const std::vector<int>& ranks);
// Returns the rank that has this name, as RankName's inverse. Throws InvalidArgument if the text is
// no rank's name.
int RankOfName(const std::string& name);
// Returns the key in the store of what belongs to one rank: "joined/2".
std::string RankKey(const std::string& what, int rank);

}  // namespace lathe
