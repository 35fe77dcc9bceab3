// What a rank does before it ends well where no static object is destroyed: in a function that
// Launch runs.
#pragma once

#include <functional>

namespace lathe {

// From now on EndRank calls it, in this process and those that it forks.
void AtRankEnd(std::function<void()> action);
void EndRank();

}  // namespace lathe
