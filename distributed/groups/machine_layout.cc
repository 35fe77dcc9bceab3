#include "lathe/distributed/groups/machine_layout.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lathe {

std::vector<std::vector<int>> RanksByMachine(const std::vector<RankPlacement>& placements) {
  std::vector<std::vector<int>> machines;
  struct Last {
    size_t machine = 0;
    bool has_main = false;  // a local rank 0
  };
  std::map<uint64_t, Last> last_of_host;
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    const auto [at, is_new] = last_of_host.try_emplace(placements[rank].host);
    Last& last = at->second;
    const bool is_main = placements[rank].local_rank == 0;
    // Several machines may have one name, or one machine several launchers. A local rank 0 begins
    // the next one. Those before the first local rank 0 belong to its machine.
    if (is_new || (is_main && last.has_main)) {
      last = {machines.size()};
      machines.emplace_back();
    }
    last.has_main = last.has_main || is_main;
    machines[last.machine].push_back(static_cast<int>(rank));
  }
  return machines;
}

MachineLayout::MachineLayout(const std::vector<RankPlacement>& placements)
    : machines_(RanksByMachine(placements)),
      machine_of_(placements.size()),
      place_of_(placements.size()) {
  SplitUnless([&](const std::vector<int>& ranks) {
    return std::ranges::all_of(ranks, [&](const int& rank) {
      const RankPlacement& placement = placements[static_cast<size_t>(rank)];
      return placement.local_world_size == std::ssize(ranks) &&
             placement.local_rank == &rank - ranks.data();
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

std::vector<int> MachineLayout::ChannelsOf(int rank) const {
  std::vector<int> channels;
  const int step = static_cast<int>(RanksOf(MachineOf(rank)).size());
  for (int channel = PlaceOf(rank); channel < num_channels(); channel += step)
    channels.push_back(channel);
  return channels;
}

}  // namespace lathe
