// Runs actions before a rank ends well in a way that destroys no static objects: when a function
// that Launch runs returns.
#pragma once

#include <functional>

namespace lathe {

// From now on EndRank calls the action, in this process and in those that it forks.
void AtRankEnd(std::function<void()> action);
void EndRank();

}  // namespace lathe
