// Runs the ranks of a job as processes of their own, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

struct RankResult {
  int exit_code = -1;  // 128 + the signal if one ended it
  std::string said;    // what the body returned, or the message of the Error that it threw
  double seconds = 0;  // from the start of all ranks to the end of this one
};

// Returns a free port of this machine. Until this process ends, only a socket that asks for this
// port gets it, so other programs' ranks that look for one another don't meet there.
int FreePort();

// Forks one process for each environment. A check that fails in a body (EXPECT, ASSERT) shows in
// the exit code. A body that returns ends its rank as a program's end does (EndRank); one that
// throws ends it like a crash. The caller must not have used OpenMP before. A process that takes
// longer than a minute is killed.
std::vector<RankResult> RunProcesses(
    const std::vector<ProcessEnvironment>& environments,
    const std::function<std::string(const ProcessEnvironment&)>& body);

// Does the same for ranks 0 to n - 1 of one job.
std::vector<RankResult> RunRanks(int n,
                                 const std::function<std::string(const ProcessEnvironment&)>& body);
std::vector<ProcessEnvironment> Environments(int n, int port);

// The store of a job, as a process group takes it; `server` is rank 0's, and null on other ranks.
struct JobStore {
  std::shared_ptr<StoreServer> server;
  std::shared_ptr<Store> store;
};
JobStore OpenStore(const ProcessEnvironment& env);
// Opens another connection to that store.
std::shared_ptr<Store> ConnectToStore(const ProcessEnvironment& env, const std::string& name = "");

// Returns the number of this process's TCP connections, and the bytes that they have sent, each
// counted once. Connections to the store, at `store_port`, don't count.
struct TcpTraffic {
  int connections = 0;
  double bytes = 0;
};
TcpTraffic MeasureTcpTraffic(int store_port);

// Returns what `body` writes to std::cerr.
std::string CaptureStderr(const std::function<void()>& body);

// Expects that all have ended with exit code 0.
void ExpectAllWell(const std::vector<RankResult>& results);

// Places the rank on one machine with all others, or as if on a machine of its own, where ranks
// can't read each other's memory.
ProcessEnvironment PlacedOn(ProcessEnvironment env, bool one_machine);
// Places the ranks, in their order, as if on machines with as many ranks each as `machines` says.
ProcessEnvironment PlacedOn(ProcessEnvironment env, const std::vector<int>& machines);

}  // namespace lathe
