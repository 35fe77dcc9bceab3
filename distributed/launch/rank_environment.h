// The variables by which a launcher tells each rank its place in the job.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lathe/distributed/launch/launch.h"
#include "lathe/distributed/liveness/ended_ranks.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

// Names and values; no name is there twice.
using Environment = std::vector<std::pair<std::string, std::string>>;

// Returns the number of this machine's ranks.
int LocalProcesses(const LaunchOptions& options);

// Returns a name for a job that no other job has.
std::string RandomId();

// Returns a socket that holds the port where rank 0 is to listen: a free one if the option is 0.
// Nothing else gets the port while the socket lives, but rank 0 can listen there. The socket itself
// doesn't listen: a rank that waits for rank 0 would take it for rank 0. Throws Unavailable or
// InvalidArgument if rank 0 could not listen at its address. Returns no socket on other machines
// than rank 0's.
//
// If the port were only found and given up again, a socket of another job could get it. The ranks
// that look for rank 0 there would then disturb that job.
Socket HoldMainPort(const LaunchOptions& options);

// Returns the variables that are the same for all ranks of this machine. They are those of this
// process without its own place in a job, those of the job, and the options'. `main_port` comes
// from HoldMainPort.
Environment JobEnvironment(const LaunchOptions& options, const EndedRanksRecord& ended,
                           const Socket& main_port);

// Returns the job's variables with those of one rank.
Environment RankEnvironment(Environment environment, int rank, int local_rank);

}  // namespace lathe
