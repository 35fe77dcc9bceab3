// The job to which this process belongs, and the device of each of its ranks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lathe/core/base/dtype.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// The ranks of a job, as one of them sees them until it ends.
struct Job {
  ProcessEnvironment environment;
  std::shared_ptr<ProcessGroup> group;
  int local_main = 0;  // rank of this machine's local main process
};

// Joins the job in the first call, and divides the cores of a machine among its processes. The job
// is that of `environment`, or else of the process's environment variables. Later calls return the
// same job. `timeout` and `heartbeat_timeout` are those of ProcessGroupOptions.
const Job& JoinJobOnce(const std::optional<ProcessEnvironment>& environment,
                       std::chrono::milliseconds timeout,
                       std::chrono::milliseconds heartbeat_timeout = {});

// Returns the group of the job that this process has joined; null if it has joined none.
std::shared_ptr<ProcessGroup> JoinedGroup();

struct JobDevice {
  Device device = {};
  std::shared_ptr<NcclGroup> group = nullptr;  // null: on the host, or with one rank
  std::string note = "";  // why existing GPUs stay unused; "" if there is nothing to say
};

// Chooses the device that `wish` names; all ranks must pass the same wish. "cpu": the host. "cuda":
// each rank has a GPU of its own, the one with the number of its local rank (DescribeRankDevice).
// "auto": as "cuda" if each rank can have its own GPU, else "cpu". In a job of one rank it does
// what ChooseDevice does. A collective. Throws on all ranks, with the same words, if the wish is
// another one or the GPUs can't be had.
JobDevice ChooseJobDevice(const Job& job, const std::string& wish,
                          std::chrono::milliseconds timeout);

// Returns the build ID that the linker gave this program, in hexadecimal; "" if it gave none.
std::string BuildId();

}  // namespace lathe
