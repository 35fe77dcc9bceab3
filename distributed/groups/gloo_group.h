// The process group for tensors in the host's memory: shared memory within a machine, and Gloo's
// TCP connections between machines.
#pragma once

#include <chrono>
#include <memory>

#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// `server` is rank 0's and lives as long as the group. `life` is a connection to the store of its
// own, for PeerWatch::StartHeartbeat.
//
// Ranks of one machine read each other's memory, if they may. Each of them talks over TCP to one
// rank of each other machine (see machine_layout.h). Reductions begin and end in a machine's
// memory. So a machine sends as much as a single rank there would send.
std::shared_ptr<ProcessGroup> MakeGlooGroup(const ProcessEnvironment& env,
                                            std::shared_ptr<StoreServer> server,
                                            std::shared_ptr<Store> store,
                                            std::shared_ptr<Store> life,
                                            std::chrono::milliseconds timeout);

}  // namespace lathe
