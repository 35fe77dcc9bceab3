// Which ranks of a job are on one machine, and which rank of each machine talks to those of others.
//
// The ranks of a machine have places from 0 on, in their order. Channel c connects the machines
// with each other: on a machine with n ranks the one at place c % n carries it. There are as many
// channels as the largest machine has ranks. So if all machines have as many ranks, each rank
// carries the channel of its place. A rank of a smaller machine carries several.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace lathe {

// What a rank knows of its machine.
struct RankPlacement {
  uint64_t host = 0;  // a number that the ranks of a machine have in common, and few others have
  int local_rank = 0, local_world_size = 1;  // as its launcher states them; may be wrong
};

// Returns the ranks of each machine, ascending; machines are in the order of their first ranks.
// Ranks of one machine need not be consecutive (srun --distribution=cyclic). Machines of the same
// host are told apart if their ranks are consecutive: each then has a local rank 0 of its own.
std::vector<std::vector<int>> RanksByMachine(const std::vector<RankPlacement>& placements);

class MachineLayout {
 public:
  // Ranks are on one machine if RanksByMachine says so, their local ranks count from 0 on, and all
  // state their number. Any other rank counts as a machine of its own.
  explicit MachineLayout(const std::vector<RankPlacement>& placements);

  // Makes each rank of a machine a machine of its own where `keep` is false for the machine's
  // ranks.
  void SplitUnless(const std::function<bool(const std::vector<int>& ranks)>& keep);

  int num_machines() const { return static_cast<int>(machines_.size()); }
  int num_channels() const { return num_channels_; }
  int MachineOf(int rank) const { return machine_of_[static_cast<size_t>(rank)]; }
  int PlaceOf(int rank) const { return place_of_[static_cast<size_t>(rank)]; }
  // The ranks of a machine, ascending. Machines are in the order of their first ranks.
  const std::vector<int>& RanksOf(int machine) const {
    return machines_[static_cast<size_t>(machine)];
  }
  // Returns the rank at a place of a machine; -1 if the machine has fewer ranks.
  int RankAt(int machine, int place) const {
    const std::vector<int>& ranks = RanksOf(machine);
    return place < std::ssize(ranks) ? ranks[static_cast<size_t>(place)] : -1;
  }
  int num_ranks() const { return static_cast<int>(machine_of_.size()); }
  // Returns the channels that a rank carries, ascending.
  std::vector<int> ChannelsOf(int rank) const;
  // Returns the place of the rank that carries a channel.
  int CarrierOf(int channel, int machine) const {
    return channel % static_cast<int>(RanksOf(machine).size());
  }

 private:
  std::vector<std::vector<int>> machines_;
  std::vector<int> machine_of_, place_of_;  // by rank
  int num_channels_ = 0;
};

}  // namespace lathe
