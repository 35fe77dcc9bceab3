// The variables by which a launcher tells each rank its place in the job.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lathe/distributed/launch/launch.h"
#include "lathe/distributed/liveness/ended_ranks.h"

namespace lathe {

// Names and values; no name is there twice.
using Environment = std::vector<std::pair<std::string, std::string>>;

// Returns the number of this machine's ranks.
int LocalProcesses(const LaunchOptions& options);

// Returns a name for a job that no other job has.
std::string RandomId();

// Returns the variables that are the same for all ranks of this machine. They are those of this
// process without its own place in a job, those of the job, and the options'. Throws Unavailable or
// InvalidArgument if rank 0 could not listen at its address.
Environment JobEnvironment(const LaunchOptions& options, const EndedRanksRecord& ended);

// Returns the job's variables with those of one rank.
Environment RankEnvironment(Environment environment, int rank, int local_rank);

}  // namespace lathe
