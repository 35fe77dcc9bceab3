// How a process joins the others of its job, and gets the group of all of them.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

struct ProcessGroupOptions {
  // How long ranks may be late: to join, and to take part in a call.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // How long a rank may give no sign of life, whether others wait for it or not. Rank 0's counts
  // for all. 0: 30 s, or `timeout` if that is shorter.
  std::chrono::milliseconds heartbeat_timeout = {};
  // "gloo": TCP, for tensors in host memory. "nccl": one GPU for each rank; the group is an
  // NcclGroup (groups/nccl/nccl_group.h).
  std::string backend = "gloo";
};

// Waits until all ranks of the environment have joined. Rank 0 listens at its master address.
// Throws the same error on every rank if some don't come (it names them), one comes twice, or they
// don't agree on their number. Throws Unavailable, as the group's calls do, if a rank that had
// joined ends before all have. Throws InvalidArgument for an unknown backend, and
// FailedPrecondition for one that this program or machine doesn't have. Throws FailedPrecondition,
// too, if this process may not open enough files (RequireOpenFiles). Throws InvalidArgument if an
// environment variable names no network interface or no ports (network.h).
std::shared_ptr<ProcessGroup> JoinProcessGroup(const ProcessEnvironment& environment,
                                               const ProcessGroupOptions& options = {});

}  // namespace lathe
