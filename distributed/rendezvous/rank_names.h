// The names of ranks, for messages and in the store, and waits for what ranks leave there.
#pragma once

#include <string>
#include <vector>

#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// Returns "rank 2". A rank's connection to the store has this name, too (Store::kGone).
std::string RankName(int rank);
// Returns "rank 2", or "ranks 0, 2".
std::string RankNames(const std::vector<int>& ranks);
// Returns the rank of this name. Throws InvalidArgument if the text is no rank's name.
int RankOfName(const std::string& name);
// Returns the key in the store of what belongs to one rank: "joined/2".
std::string RankKey(const std::string& what, int rank);
// Returns these keys of several ranks, in their order.
std::vector<std::string> RankKeys(const std::string& what, const std::vector<int>& ranks);

// Returns the ranks first, first + 1, ..., end - 1.
std::vector<int> RanksBetween(int first, int end);

// Waits, for `timeout` at most, until these ranks have set their keys. Returns those that have not.
std::vector<int> AwaitRanks(Store& store, const std::string& what, const std::vector<int>& ranks,
                            Store::Timeout timeout);

}  // namespace lathe
