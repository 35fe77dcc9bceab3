#include "lathe/distributed/groups/machine_links.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "lathe/core/base/philox.h"
#include "lathe/distributed/rendezvous/machine.h"
#include "lathe/distributed/rendezvous/network.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

std::vector<Introduction> Introduce(PeerWatch& watch, const Introduction& mine,
                                    Milliseconds timeout) {
  std::vector<Introduction> all;
  for (const std::string& theirs : watch.Exchange(
           Introduction::kKey, {reinterpret_cast<const char*>(&mine), sizeof mine}, timeout)) {
    if (theirs.size() != sizeof mine) throw CallsDiffer();
    std::memcpy(&all.emplace_back(), theirs.data(), sizeof mine);
  }
  return all;
}

// Sets the layout and the local ranks.
void MeetLocalRanks(MachineLinks& links, PeerWatch& watch, int rank, int local_rank,
                    int local_world_size, Milliseconds timeout) {
  LocalRanks::Newcomer newcomer(local_rank == 0 ? local_world_size : 0);
  const std::vector<Introduction> all = Introduce(
      watch, {{HashName(HostName()), local_rank, local_world_size}, newcomer.hello()}, timeout);
  std::vector<RankPlacement> placements;
  for (const Introduction& each : all) placements.push_back(each.placement);
  links.layout = MachineLayout(placements);
  std::vector<LocalRanks::Hello> hellos;
  for (const int other : links.layout.RanksOf(links.layout.MachineOf(rank)))
    hellos.push_back(all[static_cast<size_t>(other)].hello);
  const bool is_alone = hellos.size() == 1;
  if (!is_alone) links.local = newcomer.Meet(hellos, links.layout.PlaceOf(rank));
  // Each rank tells whether it can read the others' memory. All ranks of a machine must.
  const std::vector<std::string> met =
      watch.Exchange(Introduction::kMet, is_alone || links.local != nullptr ? "1" : "0", timeout);
  links.layout.SplitUnless([&](const std::vector<int>& ranks) {
    return std::ranges::all_of(ranks,
                               [&](int each) { return met[static_cast<size_t>(each)] == "1"; });
  });
  if (links.layout.RanksOf(links.layout.MachineOf(rank)).size() > 1) return;
  LocalRanks::Newcomer alone(1);
  links.local = alone.Meet({alone.hello()}, 0);
  if (links.local == nullptr) throw OwnFault("there is no memory to share with other processes");
}

}  // namespace

MachineLinks LinkMachines(PeerWatch& watch, int rank, int local_rank, int local_world_size,
                          Milliseconds timeout, std::shared_ptr<ActiveTransfers> transfers) {
  MachineLinks links;
  MeetLocalRanks(links, watch, rank, local_rank, local_world_size, timeout);
  const MachineLayout& layout = links.layout;
  const int machine = layout.MachineOf(rank);
  std::vector<GlooMembership> memberships;
  links.carried = layout.ChannelsOf(rank);
  for (const int channel : links.carried) {
    memberships.push_back({channel, machine, {}});
    for (int other = 0; other < layout.num_machines(); ++other) {
      const int place = layout.CarrierOf(channel, other);
      memberships.back().ranks.push_back(layout.RankAt(other, place));
    }
  }
  if (layout.num_machines() == 1) {
    links.channels.emplace_back(nullptr);
    return links;
  }
  // The store knows this rank's address once all ranks have joined.
  std::string host = watch.store().local_host();
  const bool is_ipv6 = host.find(':') != std::string::npos;
  if (const auto chosen = SocketInterfaceAddress(is_ipv6)) host = *chosen;
  for (auto& context : ConnectGloo(watch, memberships, host, timeout, std::move(transfers)))
    links.channels.emplace_back(std::move(context));
  return links;
}

}  // namespace lathe
