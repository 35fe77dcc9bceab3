// A process group on Gloo's TCP connections, for tensors in the host's memory.
#pragma once

#include <chrono>
#include <memory>

#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// Connects every rank with every other. `server` is rank 0's and lives as long as the group. `life`
// is a connection to the store of its own, first for connecting, then for Heartbeat. If all ranks
// are on one machine and may read each other's memory, they reduce there instead of over TCP.
std::shared_ptr<ProcessGroup> MakeGlooGroup(int rank, int size, std::shared_ptr<StoreServer> server,
                                            std::shared_ptr<Store> store,
                                            std::shared_ptr<Store> life,
                                            std::chrono::milliseconds timeout, bool one_machine);

}  // namespace lathe
