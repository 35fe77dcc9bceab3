#include "lathe/distributed/rendezvous/rank_end.h"

#include <utility>
#include <vector>

namespace lathe {
namespace {

std::vector<std::function<void()>>& Actions() {
  static std::vector<std::function<void()>> actions;
  return actions;
}

}  // namespace

void AtRankEnd(std::function<void()> action) { Actions().push_back(std::move(action)); }

void EndRank() {
  for (const auto& action : std::exchange(Actions(), {})) action();
}

}  // namespace lathe
