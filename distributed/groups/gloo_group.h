// Gloo's TCP collectives for processes without GPUs.
#pragma once

#include <chrono>
#include <memory>

#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// Connects every rank with every other. `server` is rank 0's and lives as long as the group. Ranks
// that are all on one machine reduce in each other's memory if they may. life: a connection of its
// own, for connecting and then for LifeSigns.
std::shared_ptr<ProcessGroup> MakeGlooGroup(int rank, int size, std::shared_ptr<StoreServer> server,
                                            std::shared_ptr<Store> store,
                                            std::shared_ptr<Store> life,
                                            std::chrono::milliseconds timeout, bool one_machine);

}  // namespace lathe
