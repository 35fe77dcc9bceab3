// What happens before a rank ends well in a way that destroys no static objects: when a function
// that Launch runs returns.
#pragma once

namespace lathe {

// What EndRank calls, in this process and in those that it forks; null for nothing.
inline void (*at_rank_end)() = nullptr;

inline void EndRank() {
  if (at_rank_end != nullptr) at_rank_end();
}

}  // namespace lathe
