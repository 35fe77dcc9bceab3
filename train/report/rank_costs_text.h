// Says what a training in several ranks has cost.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lathe {

// Returns a sentence without its end: the time in collectives, the part that computation hid, and
// the slowest rank. `metrics` are those of train_results.json. Returns "" if they have no such
// times, as with one rank.
std::string RankCostsText(const nlohmann::json& metrics);

}  // namespace lathe
