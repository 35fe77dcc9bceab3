// Starts the processes of a job on this machine, gives each its rank through its environment, and
// ends them together. This is what `lathe launch` does, and notebook_launcher in Accelerate.
//
//   int exit_code = lathe::LaunchProgram({"./train", "--epochs", "3"}, {.num_processes = 4});
//   int exit_code = lathe::Launch([] { Train(); }, 4);
//
// A rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// LATHE_JOB_ID and OMP_NUM_THREADS. The variables by which other launchers number their processes
// are removed. Standard input is empty. rank_supervisor.h describes how ranks end.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {

// See rank_supervisor.h.
struct SupervisorOptions {
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  std::chrono::milliseconds notice = std::chrono::seconds(5);
  std::chrono::milliseconds stop = std::chrono::seconds(5);
  std::chrono::milliseconds patience = std::chrono::seconds(1);
  bool tag_output = false;
  bool pass_input = false;  // the first rank that is started gets standard input
};

struct LaunchOptions {
  // The number of processes of the whole job; each machine runs the same number.
  int num_processes = 1;
  int num_machines = 1, machine_rank = 0;
  // An address of the machine with machine_rank 0.
  std::string main_process_ip = "127.0.0.1";
  // 0: a free port, which works only if there is one machine.
  int main_process_port = 0;
  // The value of OMP_NUM_THREADS in each rank. With 0 it is the value in this process's
  // environment. If there is none, this machine's cores are divided evenly among its ranks.
  int num_threads_per_process = 0;
  // The number of this machine's GPUs, one for each rank; more ranks are refused. With 0 there is
  // no limit. The ranks then use the CPU if ACCELERATE_USE_CPU in `environment` says so. Otherwise
  // they decide for themselves.
  int num_gpus = VisibleGpus();
  // How often LaunchProgram starts the job again if it fails. It doesn't after a wrong option (exit
  // code 2) or a signal to the launcher. Nor does it after the third error in a row that a rank has
  // reported itself. It pauses before, 0.1 s at first. The pause doubles each time that the job has
  // lasted less than 10 s, up to 10 s. It is 10 s at once after an error that a rank has reported
  // itself, unless all starts before have ended so within 10 s. A signal ends the pause and the
  // launcher, with exit code 128 + the signal.
  int max_restarts = 0;
  // True: a restarted job has only as many ranks as had not failed by themselves, at least 1. They
  // train with the batches of the whole job. One machine only.
  bool restart_with_ranks_left = false;
  // More variables for each rank; they override this process's.
  std::vector<std::pair<std::string, std::string>> environment = {};
  SupervisorOptions supervisor = {};
};

// Throws InvalidArgument, naming the option, if an option is out of range or doesn't go with
// another.
void CheckLaunchOptions(const LaunchOptions& options);

// Runs the program, looked up in PATH, once for each rank of this machine. As under torchrun, a
// rank finds the number of restarts before in TORCHELASTIC_RESTART_COUNT. It finds max_restarts,
// unless that is 0, in TORCHELASTIC_MAX_RESTARTS. Returns the job's exit code (see
// RankSupervisor::Wait). Before it starts anything, it throws what CheckLaunchOptions throws. It
// throws NotFound, PermissionDenied or InvalidArgument if the program can't be run, and Unavailable
// `port 29500 is taken by process 123 (python3)`.
int LaunchProgram(const std::vector<std::string>& command, const LaunchOptions& options);

// Runs the function in forked processes, num_processes in the whole job. A rank whose function
// throws prints `error: rank 1: ...` and ends with exit code 1. Ranks that throw because they have
// lost another rank end with exit code 75. At most one of them on each machine prints its error. No
// state of the forked processes comes back.
// With one process it is a plain call: it forks nothing, sets no variable, and lets exceptions out.
// Throws FailedPrecondition if this process has more than one thread, as it has once OpenMP was
// used. Forked ranks would lack these threads and wait for them forever.
int Launch(const std::function<void()>& function, int num_processes, LaunchOptions options = {});

}  // namespace lathe
