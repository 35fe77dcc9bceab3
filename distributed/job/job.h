// The job to which this process belongs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

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

// Returns the build ID that the linker gave this program, in hexadecimal; "" if it gave none.
std::string BuildId();

}  // namespace lathe
