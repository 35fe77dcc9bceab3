// How a rank reaches the others: those of its machine in memory, and those of other machines
// through channels.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lathe/distributed/groups/channel.h"
#include "lathe/distributed/groups/gloo_connect.h"
#include "lathe/distributed/groups/local_ranks.h"
#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/distributed/liveness/peer_watch.h"

namespace lathe {

// What a rank tells all others first, as bytes (see PeerWatch::Exchange). Then it tells under kMet,
// by "1" or "0", whether it can read the memory of the other ranks of its machine.
struct Introduction {
  static constexpr char kKey[] = "introduction", kMet[] = "met";
  RankPlacement placement;
  LocalRanks::Hello hello;
};

struct MachineLinks {
  MachineLayout layout{{}};
  std::unique_ptr<LocalRanks> local;
  std::vector<int> carried;       // the numbers of this rank's channels, ascending
  std::vector<Channel> channels;  // on one machine a single one, without other members
};

// Finds the ranks of this machine that read each other's memory, and connects the machines. All
// ranks of `watch` call it, inside of PeerWatch::Run. `local_rank` and `local_world_size` are what
// the launcher says of this machine.
MachineLinks LinkMachines(PeerWatch& watch, int rank, int local_rank, int local_world_size,
                          std::chrono::milliseconds timeout,
                          std::shared_ptr<ActiveTransfers> transfers);

}  // namespace lathe
