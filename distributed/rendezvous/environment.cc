#include "lathe/distributed/rendezvous/environment.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// The names of one launcher's variables; "" for a variable that it doesn't have.
struct LauncherVariables {
  const char* launcher;
  const char *rank, *world_size, *local_rank, *local_world_size;
};

constexpr LauncherVariables kLaunchers[] = {
    {"torchrun or lathe launch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // Only srun sets SLURM_STEP_NUM_TASKS. A batch script, which runs once, has SLURM_NTASKS, too.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

constexpr char kCorrectHint[] = "correct the environment variable or unset it";

Error WrongVariable(const char* name, const std::string& wanted, const std::string& text) {
  return InvalidArgument(absl::StrCat(name, " must be ", wanted, " but is \"", text, "\""),
                         kCorrectHint);
}

int ParseInt(const char* name, const std::string& text, int low, int high) {
  const std::optional<int> value = ParseNumberText<int>(text);
  if (value && *value >= low && *value <= high) return *value;
  throw WrongVariable(name, absl::StrCat("a whole number from ", low, " to ", high), text);
}

// Reads a variable; nullopt if it is not set.
std::optional<int> ReadInt(const GetVariable& get, const char* name, int low, int high) {
  const auto text = get(name);
  return text ? std::optional(ParseInt(name, *text, low, high)) : std::nullopt;
}

std::optional<std::chrono::milliseconds> ReadSeconds(const GetVariable& get, const char* name) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const double seconds = ParseNumberText<double>(*text).value_or(0);
  if (!(seconds >= 1 && seconds <= 1e6))
    throw WrongVariable(name, "a number of seconds from 1 to 1000000", *text);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Returns true if srun has set MPICH's variables (srun --mpi=pmi2). They then say the same as
// Slurm's, but not which processes share a machine. Inside an mpirun that srun has started they
// differ, since its ranks all inherit one SLURM_PROCID.
bool IsSlurmsOwnPmi(const GetVariable& get, const LauncherVariables& names) {
  if (std::string_view(names.launcher) != "MPICH" || get(names.local_rank)) return false;
  const auto rank = get("SLURM_PROCID"), size = get("SLURM_STEP_NUM_TASKS");
  return rank && size && rank == get(names.rank) && size == get(names.world_size);
}

// Returns the mpirun or srun that has started this process and more than `most` processes in all,
// and their number; null if there is none.
std::pair<const LauncherVariables*, std::string> FindLargerJob(const GetVariable& get, int most) {
  for (const LauncherVariables& outer : kLaunchers) {
    const auto rank = get(outer.rank), size = get(outer.world_size);
    if (&outer == &kLaunchers[0] || !rank || !size || IsSlurmsOwnPmi(get, outer)) continue;
    // A size that is not a number counts as 0: the job doesn't need this launcher's variables.
    if (ParseNumberText<int>(*size).value_or(0) > most) return {&outer, *size};
  }
  return {};
}

// Throws if every process of a larger outer launcher has inherited the same RANK and WORLD_SIZE.
// Each would be a job of its own, and all would write the same files. An mpirun or srun that starts
// a launcher of ours on each machine has started fewer processes than the job has.
void CheckNotInsideALargerJob(const GetVariable& get, int world_size) {
  const auto [outer, size] = FindLargerJob(get, world_size);
  if (outer == nullptr) return;
  throw InvalidArgument(
      absl::StrCat("WORLD_SIZE is ", world_size, " but ", outer->world_size, " is ", size, ": ",
                   outer->launcher, " has started more processes than the job has"),
      absl::StrCat("unset RANK and WORLD_SIZE for one job of ", size, " processes, or unset ",
                   outer->world_size, " for separate jobs"));
}

// Throws if RANK is the number of a machine that shall have several processes: Kubernetes'
// PyTorchJob with nprocPerNode sets it so, for a launcher.
void CheckNeedsNoLauncher(const GetVariable& get) {
  const std::string processes = get("PET_NPROC_PER_NODE").value_or("1");
  if (get("LOCAL_RANK") || processes.find_first_not_of("0123456789") != std::string::npos ||
      processes == "1")
    return;
  throw InvalidArgument("PET_NPROC_PER_NODE is " + processes +
                            " but LOCAL_RANK is not set: this machine shall have " + processes +
                            " processes, and nothing numbers them",
                        "start the program with `lathe launch`, which starts them all");
}

// Returns the first of several hosts in Slurm's short form: "r1n03" of "r[1-2]n[03-07,9],other".
std::string FirstHost(std::string_view list) {
  std::string host;
  while (!list.empty() && list[0] != ',') {
    const bool in_brackets = list[0] == '[';
    const std::string_view part = list.substr(0, list.find_first_of(in_brackets ? "]" : "[,"));
    host += in_brackets ? part.substr(1, part.find_first_of("-,") - 1) : part;
    list.remove_prefix(std::min(part.size() + in_brackets, list.size()));
  }
  return host;
}

// Sets rank 0's address and port from Slurm's variables, alike in every process of the step.
void MasterFromSlurm(const GetVariable& get, ProcessEnvironment& env) {
  if (const auto nodes = get("SLURM_STEP_NODELIST")) env.master_addr = FirstHost(*nodes);
  if (const auto job = ReadInt(get, "SLURM_JOB_ID", 0, INT32_MAX)) {
    constexpr int kFirst = 15000, kPorts = 10000;
    // Steps of one job may run side by side, so each gets a port of its own.
    const int step = ReadInt(get, "SLURM_STEP_ID", 0, INT32_MAX).value_or(0);
    env.master_port = kFirst + (*job % kPorts + step % kPorts) % kPorts;
  }
}

void ReadMaster(const GetVariable& get, ProcessEnvironment& env) {
  const auto addr = get("MASTER_ADDR");
  if (env.launcher == "Slurm") MasterFromSlurm(get, env);
  if (addr) env.master_addr = WithoutBrackets(*addr);
  // PMI_RANK and PMI_SIZE don't say which processes share a machine, and other launchers than srun
  // may set only these two.
  if (env.launcher == "MPICH" && env.world_size > 1 && !addr &&
      !(get("MPI_LOCALRANKID") && get("MPI_LOCALNRANKS"))) {
    throw InvalidArgument(
        "PMI_RANK and PMI_SIZE are set, but neither MPI_LOCALRANKID with MPI_LOCALNRANKS nor "
        "MASTER_ADDR: nothing tells on which machines the job's processes run",
        "set MASTER_ADDR to the address of rank 0's machine, or to 127.0.0.1 if there is only one");
  }
  env.master_port = ReadInt(get, "MASTER_PORT", 1, kLargestPort).value_or(env.master_port);
  // torchrun itself may listen at MASTER_PORT, with its ranks as clients.
  if (env.launcher == kLaunchers[0].launcher && get("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    const int further = 1 + static_cast<int>(ReadRestarts(get) % 100);
    env.master_port += env.master_port + further <= kLargestPort ? further : -further;
  }
  if (!addr && env.local_world_size != env.world_size && env.launcher != "Slurm") {
    throw InvalidArgument("MASTER_ADDR is not set, and the job's processes run on several machines",
                          "set it to the address of rank 0's machine; `mpirun -x MASTER_ADDR=HOST` "
                          "does so for all processes");
  }
}

// Returns how many processes of a Slurm step run on this machine by a list such as "2(x3),1": two
// on each of the first three machines, then one. Returns 0 if Slurm doesn't tell.
int SlurmTasksHere(const GetVariable& get) {
  constexpr char kList[] = "SLURM_STEP_TASKS_PER_NODE";
  const std::string list = get(kList).value_or("");
  auto node = list.empty() ? std::nullopt : ReadInt(get, "SLURM_NODEID", 0, kMostProcesses);
  if (!node) return 0;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(list, ','))) {
    const size_t times = part.find("(x");
    const int tasks = ParseInt(kList, part.substr(0, times), 1, kMostProcesses);
    const std::string nodes =
        times == std::string::npos ? "1" : part.substr(times + 2, part.size() - times - 3);
    *node -= ParseInt(kList, nodes, 1, kMostProcesses);
    if (*node < 0) return tasks;
  }
  return 0;
}

// Sets the local rank and the number of local ranks. Without variables for them, all ranks count as
// ranks of this machine if rank 0's address is local or not given.
void ReadLocal(const GetVariable& get, const LauncherVariables& names, ProcessEnvironment& env) {
  const std::string addr = WithoutBrackets(get("MASTER_ADDR").value_or("localhost"));
  const bool all_here = addr.starts_with("127.") || addr == "localhost" || addr == "::1";
  const int by_slurm = env.launcher == "Slurm" ? SlurmTasksHere(get) : 0;
  env.local_rank =
      ReadInt(get, names.local_rank, 0, env.world_size - 1).value_or(all_here ? env.rank : 0);
  env.local_world_size = ReadInt(get, names.local_world_size, 1, env.world_size)
                             .value_or(by_slurm > 0 ? by_slurm
                                       : all_here   ? env.world_size
                                                    : env.local_rank + 1);
  if (env.local_rank < env.local_world_size) return;
  throw InvalidArgument(
      absl::StrCat(names.local_rank, " is ", env.local_rank, " but this machine has ",
                   env.local_world_size, " processes of the job"),
      kCorrectHint);
}

}  // namespace

std::string WithoutBrackets(const std::string& address) {
  const bool has_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  return has_brackets ? address.substr(1, address.size() - 2) : address;
}

std::optional<std::string> OwnVariable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0) return std::nullopt;
  return value;
}

ProcessEnvironment ReadProcessEnvironment(const GetVariable& get) {
  ProcessEnvironment env;
  for (const LauncherVariables& names : kLaunchers) {
    const auto rank = get(names.rank), size = get(names.world_size);
    if (!rank && !size) continue;
    if (!size && std::string_view(names.launcher) == "Slurm") continue;  // a batch script
    if (IsSlurmsOwnPmi(get, names)) continue;
    if (!rank || !size) {
      throw InvalidArgument(absl::StrCat(rank ? names.rank : names.world_size, " is set but ",
                                         rank ? names.world_size : names.rank, " is not"),
                            "set both or neither; `lathe launch` does");
    }
    env.launcher = names.launcher;
    env.world_size = ParseInt(names.world_size, *size, 1, kMostProcesses);
    env.rank = ParseInt(names.rank, *rank, 0, env.world_size - 1);
    if (&names == &kLaunchers[0]) {
      CheckNotInsideALargerJob(get, env.world_size);
      CheckNeedsNoLauncher(get);
    }
    ReadLocal(get, names, env);
    ReadMaster(get, env);
    for (const char* name :
         {"LATHE_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID"}) {
      const auto job = get(name), step = get("SLURM_STEP_ID");
      if (!job || !env.job.empty()) continue;
      env.job = *job;
      if (name == std::string_view("SLURM_JOB_ID") && step) env.job += '.' + *step;
    }
    return env;
  }
  return env;
}

void CheckOneLauncherPerMachine(int num_machines, const GetVariable& get) {
  const auto [outer, size] = FindLargerJob(get, num_machines);
  if (outer == nullptr) return;
  throw InvalidArgument(
      absl::StrCat(outer->launcher, " has started ", size, " copies of this launcher (",
                   outer->world_size, "), and each would start a whole job on ", num_machines,
                   num_machines == 1 ? " machine" : " machines"),
      absl::StrCat("let it start the program itself, or start one launcher on each machine with "
                   "--num_machines; unset ",
                   outer->world_size, " for separate jobs"));
}

std::string ReadDevice(const GetVariable& get) {
  constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";
  const std::string word = get(kUseCpu).value_or("off");
  bool use_cpu = absl::EqualsIgnoreCase(word, "on");
  if (!use_cpu && !absl::EqualsIgnoreCase(word, "off") && !absl::SimpleAtob(word, &use_cpu))
    throw WrongVariable(kUseCpu, "true or false", word);
  return use_cpu ? "cpu" : get("LATHE_USE_GPU") ? "cuda" : "auto";
}

int64_t ReadAccumulationSteps(const GetVariable& get) {
  return ReadInt(get, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1, INT32_MAX).value_or(1);
}

std::chrono::milliseconds ReadTimeout(const GetVariable& get) {
  return ReadSeconds(get, "LATHE_TIMEOUT").value_or(std::chrono::minutes(10));
}

std::optional<std::chrono::milliseconds> ReadHeartbeatTimeout(const GetVariable& get) {
  return ReadSeconds(get, "LATHE_HEARTBEAT_TIMEOUT");
}

int64_t ReadRestarts(const GetVariable& get) {
  return ReadInt(get, kRestartsVariable, 0, INT32_MAX).value_or(0);
}

int ReadBatchProcesses(int num_processes, const GetVariable& get) {
  return ReadInt(get, kBatchProcessesVariable, 1, kMostProcesses).value_or(num_processes);
}

}  // namespace lathe
