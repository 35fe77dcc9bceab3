#include "lathe/distributed/groups/machine_layout.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lathe {

MachineLayout::MachineLayout(const std::vector<RankPlacement>& placements)
    : machine_of_(placements.size()), place_of_(placements.size()) {
  const auto of = [&](int rank) -> const RankPlacement& {
    return placements[static_cast<size_t>(rank)];
  };
  // Several machines may have one name, or one machine several launchers. A local rank 0 begins the
  // next one.
  std::map<uint64_t, size_t> last_of_host;
  for (int rank = 0; rank < std::ssize(placements); ++rank) {
    const auto [last, is_new] = last_of_host.try_emplace(of(rank).host, machines_.size());
    if (is_new || of(rank).local_rank == 0) {
      last->second = machines_.size();
      machines_.emplace_back();
    }
    machines_[last->second].push_back(rank);
  }
  SplitUnless([&](const std::vector<int>& ranks) {
    return std::ranges::all_of(ranks, [&](const int& rank) {
      return of(rank).local_world_size == std::ssize(ranks) &&
             of(rank).local_rank == &rank - ranks.data();
    });
  });
}

void MachineLayout::SplitUnless(const std::function<bool(const std::vector<int>& ranks)>& keep) {
  for (const std::vector<int>& ranks : std::exchange(machines_, {})) {
    if (keep(ranks)) {
      machines_.push_back(ranks);
    } else {
      for (const int rank : ranks) machines_.push_back({rank});
    }
  }
  std::ranges::sort(machines_);
  num_channels_ = 0;
  for (int machine = 0; machine < num_machines(); ++machine) {
    const std::vector<int>& ranks = RanksOf(machine);
    num_channels_ = std::max(num_channels_, static_cast<int>(ranks.size()));
    for (size_t place = 0; place < ranks.size(); ++place) {
      machine_of_[static_cast<size_t>(ranks[place])] = machine;
      place_of_[static_cast<size_t>(ranks[place])] = static_cast<int>(place);
    }
  }
}

}  // namespace lathe
