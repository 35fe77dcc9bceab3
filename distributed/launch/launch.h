// Starts the processes of a job on this machine, each with its rank in its environment, and ends
// them together: what `lathe launch` does, and notebook_launcher in Accelerate.
//
//   int exit_code = lathe::LaunchProgram({"./train", "--epochs", "3"}, {.num_processes = 4});
//   int exit_code = lathe::Launch([] { Train(); }, 4);
//
// A rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// LATHE_JOB_ID and OMP_NUM_THREADS, and none of the variables by which other launchers number
// their processes. Standard input is empty. How ranks end: rank_supervisor.h.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/distributed/launch/rank_supervisor.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {

struct LaunchOptions {
  int num_processes = 1;  // of the whole job; each machine runs as many
  int num_machines = 1, machine_rank = 0;
  std::string main_process_ip = "127.0.0.1";  // of the machine with rank 0
  int main_process_port = 0;                  // 0: a free one, if there is one machine
  // OMP_NUM_THREADS of each rank. 0: as this process's environment says; else this machine's cores
  // shared out evenly.
  int num_threads_per_process = 0;
  // How many ranks of this machine may have a GPU each; more are refused. 0: they use the CPU, or
  // decide for themselves: ACCELERATE_USE_CPU among the variables below decides for them.
  int num_gpus = VisibleGpus();
  // More variables for each rank, which go before this process's.
  std::vector<std::pair<std::string, std::string>> environment = {};
  SupervisorOptions supervisor = {};
};

// Throws InvalidArgument naming the option for what is out of range or doesn't go together.
void CheckLaunchOptions(const LaunchOptions& options);

// Runs the program, looked up in PATH, in as many processes as this machine has ranks, and returns
// the job's exit code (RankSupervisor::Wait). Throws, before anything is started, what
// CheckLaunchOptions does; NotFound, PermissionDenied or InvalidArgument for a program that can't
// be run; Unavailable `port 29500 is taken by process 123 (python3)`.
int LaunchProgram(const std::vector<std::string>& command, const LaunchOptions& options);

// Runs the function in forked processes, num_processes in the whole job. A rank whose function
// throws prints `error: rank 1: ...` and ends with exit code 1; of those that throw because they
// have lost another rank one tells at most, and all end with 75. Nothing of this process's state
// comes back.
// With one process it is a plain call: nothing is forked, no variable is set, and what it throws
// gets out.
// Throws FailedPrecondition if this process has more threads than one, as it has once OpenMP was
// used: they would be missing in the ranks, which would wait for them forever.
int Launch(const std::function<void()>& function, int num_processes, LaunchOptions options = {});

}  // namespace lathe
