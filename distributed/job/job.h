// The job that this process is a part of.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// The processes that this one belongs with, until it ends.
struct Job {
  ProcessEnvironment environment;
  std::shared_ptr<ProcessGroup> group;
  int local_main = 0;  // rank of this machine's local main process
};

// Those on the same machine as `rank`, ascending, of ranks on `hosts`, of which `mains` are their
// machines' local main processes. Ranks of one machine need not follow each other (srun
// --distribution=cyclic). Machines of the same name are told apart if theirs do: each begins with
// its local main process.
std::vector<int> RanksBeside(int rank, const std::vector<std::string>& hosts,
                             const std::vector<bool>& mains);

// Joins it the first time, as `environment` or else the process's variables say, and shares out the
// cores of a machine among its processes. Later calls return the same.
const Job& TheJob(const std::optional<ProcessEnvironment>& environment,
                  std::chrono::milliseconds timeout);

// The group of the job that this process has joined; null: none yet.
std::shared_ptr<ProcessGroup> JoinedGroup();

// What the linker calls this build of the program; "" if it says nothing.
std::string BuildId();

}  // namespace lathe
