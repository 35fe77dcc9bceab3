// Waits for what ranks leave in the store under their keys (RankKey), for all of them at once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// Returns the ranks first, first + 1, ..., end - 1.
std::vector<int> RanksBetween(int first, int end);

// Waits until each of the ranks has set its key of `what`, for `timeout` at most. Returns those
// that have not.
std::vector<int> AwaitRanks(Store& store, const std::string& what, const std::vector<int>& ranks,
                            Store::Timeout timeout);

// Waits likewise, and returns the values in the order of `ranks`; nullopt for those that are
// missing.
std::vector<std::optional<std::string>> GetFromRanks(Store& store, const std::string& what,
                                                     const std::vector<int>& ranks,
                                                     Store::Timeout timeout);

}  // namespace lathe
