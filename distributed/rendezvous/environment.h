// The place of this process in its job, as its launcher states it in environment variables.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

inline constexpr int kMostProcesses = 1 << 20, kLargestPort = 65535;

// Returns the number that all of the text is; nullopt if it is none.
template <typename T>
std::optional<T> ParseNumberText(std::string_view text) {
  T number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, number);
  return code == std::errc{} && stop == end ? std::optional(number) : std::nullopt;
}

// Returns an address without the brackets that IPv6 addresses have in URLs: "::1" of "[::1]".
std::string WithoutBrackets(const std::string& address);

struct ProcessEnvironment {
  int rank = 0, world_size = 1;              // among all processes of the job
  int local_rank = 0, local_world_size = 1;  // among those of this machine
  std::string master_addr = "127.0.0.1";     // the address of rank 0's machine
  int master_port = 29500;
  std::string launcher;  // named in messages; "" if there is none
  std::string job;       // a name that keeps jobs apart that meet at one port
};

// Returns the value of an environment variable; nullopt if it is not set. An empty value counts as
// not set. The functions below read this process's variables by default.
using GetVariable = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> OwnVariable(const char* name);  // of this process

// Reads the variables of the first of these launchers that has set its own:
//   torchrun, `lathe launch`  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI                  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH, Intel MPI          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   Slurm (srun)              SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
// If none has, this process is a job of its own. If srun --mpi=pmi2 has set both Slurm's variables
// and PMI_RANK and PMI_SIZE with the same values, Slurm's are read.
// MASTER_ADDR and MASTER_PORT say where the ranks meet. Slurm can do without: the address then
// follows from its list of machines, the port from the numbers of the job and its step. The others
// need MASTER_ADDR unless all ranks run on one machine. If torchrun itself listens at MASTER_PORT
// (TORCHELASTIC_USE_AGENT_STORE), the ranks meet at the next port, and one further for each
// restart. The job's name is LATHE_JOB_ID, or else the launcher's name for the job.
// Throws InvalidArgument, naming the variable, if one is missing, is not a number or is out of
// range. Throws, too, if WORLD_SIZE is less than the number of processes that an outer launcher has
// started. It may be more, as when srun starts one launcher on each machine.
ProcessEnvironment ReadProcessEnvironment(const GetVariable& get = OwnVariable);

// For a launcher of a job on `num_machines` machines. Throws InvalidArgument if an mpirun or srun
// has started more copies of the launcher than that.
void CheckOneLauncherPerMachine(int num_machines, const GetVariable& get = OwnVariable);

// Returns the device for programs that don't name one. It is "cpu" if ACCELERATE_USE_CPU is true.
// Else it is "cuda" if LATHE_USE_GPU is set, which `lathe launch` does if its user has asked for
// GPUs. Else it is "auto". ACCELERATE_USE_CPU takes Accelerate's words, in upper or lower case: y,
// yes, t, true, on, 1, or n, no, f, false, off, 0. Throws InvalidArgument for other words.
std::string ReadDevice(const GetVariable& get = OwnVariable);

// Returns the number of batches for each optimizer step: ACCELERATE_GRADIENT_ACCUMULATION_STEPS, or
// 1. Throws InvalidArgument unless it is a whole number above 0.
int64_t ReadAccumulationSteps(const GetVariable& get = OwnVariable);

// The time that ranks may be late: LATHE_TIMEOUT, in seconds, or 10 minutes. `lathe launch
// --timeout` sets the variable. Throws InvalidArgument unless it is a number from 1 to 1e6.
std::chrono::milliseconds ReadTimeout(const GetVariable& get = OwnVariable);

// How long a rank may give no sign of life: LATHE_HEARTBEAT_TIMEOUT, in seconds; nullopt if it is
// not set. `lathe launch --heartbeat_timeout` sets the variable. Throws as ReadTimeout does.
std::optional<std::chrono::milliseconds> ReadHeartbeatTimeout(const GetVariable& get = OwnVariable);

// The number of times that the launcher has started this job again: 0, unless `lathe launch
// --max_restarts` or torchrun set the variable. Throws InvalidArgument unless it is a whole number.
inline constexpr char kRestartsVariable[] = "TORCHELASTIC_RESTART_COUNT";
int64_t ReadRestarts(const GetVariable& get = OwnVariable);
// How often the launcher starts the job again at most. `lathe launch` sets it only if it does.
inline constexpr char kMaxRestartsVariable[] = "TORCHELASTIC_MAX_RESTARTS";

// The number of processes whose batches make the batch of the whole job. If a job was started again
// with fewer processes, `lathe launch` sets the variable to the first number. Otherwise it is
// `num_processes`. Throws InvalidArgument unless it is a whole number above 0.
inline constexpr char kBatchProcessesVariable[] = "LATHE_BATCH_PROCESSES";
int ReadBatchProcesses(int num_processes, const GetVariable& get = OwnVariable);

}  // namespace lathe
