// Which process of a job this one is, as its launcher says in environment variables.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lathe {

inline constexpr int kMostProcesses = 1 << 20, kLargestPort = 65535;

struct ProcessEnvironment {
  int rank = 0, world_size = 1;              // among all processes of the job
  int local_rank = 0, local_world_size = 1;  // among those of this machine
  std::string master_addr = "127.0.0.1";     // where rank 0 can be reached
  int master_port = 29500;
  std::string launcher;  // whose variables said so, for messages; "" if none did
  std::string job;       // keeps jobs apart that meet at one port
};

// The value of a variable; nullopt if it is not set. An empty one counts as not set.
using GetVariable = std::function<std::optional<std::string>(const char* name)>;

// The first of these that is there whole:
//   torchrun's and `lathe launch`'s  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI's                       OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH's, Intel MPI's             PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   Slurm's (srun)                   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
// with MASTER_ADDR and MASTER_PORT, which only Slurm's can do without. None of them: one process.
// Slurm's go before PMI_RANK and PMI_SIZE that say the same (srun --mpi=pmi2).
// The job's name is LATHE_JOB_ID, or what these launchers call it. Where torchrun listens at
// MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE), the ranks meet at the next one, or as many
// further as it has restarted them.
// Throws InvalidArgument naming the variable for what is no number, out of range, half there or
// missing, or if WORLD_SIZE is less than the number of processes that one of the others has
// started. It may be more: a launcher on each machine that srun has started.
ProcessEnvironment ReadProcessEnvironment(const GetVariable& get);
ProcessEnvironment ReadProcessEnvironment();  // of this process

// For a launcher of a job on so many machines. Throws InvalidArgument if an mpirun or srun has
// started more of it.
void CheckOneLauncherEach(const GetVariable& get, int num_machines);
void CheckOneLauncherEach(int num_machines);  // with this process's variables

// Where to compute if nobody else says so: "cpu" where ACCELERATE_USE_CPU is true, in the words
// that Accelerate knows: y, yes, t, true, on, 1 or n, no, f, false, off, 0, in upper case or lower;
// "cuda" where there is LATHE_USE_GPU, which `lathe launch` sets for who has asked for GPUs; else
// "auto". Throws InvalidArgument for other words.
std::string ReadDevice(const GetVariable& get);
std::string ReadDevice();  // of this process

// Batches to a step: ACCELERATE_GRADIENT_ACCUMULATION_STEPS, or 1. Throws InvalidArgument for what
// is no whole number above 0.
int64_t ReadAccumulationSteps(const GetVariable& get);
int64_t ReadAccumulationSteps();  // of this process

// How long ranks may be late: LATHE_TIMEOUT, in seconds, which `lathe launch --timeout` sets, or 10
// minutes. Throws InvalidArgument for what is no number from 1 to 1e6.
std::chrono::milliseconds ReadTimeout(const GetVariable& get);
std::chrono::milliseconds ReadTimeout();  // of this process

}  // namespace lathe
