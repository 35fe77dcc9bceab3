#include "lathe/distributed/rendezvous/environment.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// The names of one launcher's variables; nullptr for a variable that it doesn't have.
struct LauncherVariables {
  const char* launcher;
  const char *rank, *world_size, *local_rank, *local_world_size;
};

constexpr LauncherVariables kLaunchers[] = {
    {"torchrun or lathe launch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // Only srun sets SLURM_STEP_NUM_TASKS. SLURM_NTASKS is also set in a batch script, which runs
    // once.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
};

// Returns true if srun has set MPICH's variables (srun --mpi=pmi2). They then say the same as
// Slurm's, but not which processes share a machine. Inside an mpirun that srun has started they
// differ, since its ranks all inherit one SLURM_PROCID.
bool IsSlurmsOwnPmi(const GetVariable& get, const LauncherVariables& names) {
  if (std::string_view(names.launcher) != "MPICH" || get(names.local_rank)) return false;
  const auto rank = get("SLURM_PROCID"), size = get("SLURM_STEP_NUM_TASKS");
  return rank && size && rank == get(names.rank) && size == get(names.world_size);
}

// Returns the mpirun or srun that has started this process and more than `most` processes in all;
// null if there is none.
const LauncherVariables* FindLargerJob(const GetVariable& get, int most) {
  for (const LauncherVariables& outer : kLaunchers) {
    const auto rank = get(outer.rank), size = get(outer.world_size);
    if (&outer == &kLaunchers[0] || !rank || !size || IsSlurmsOwnPmi(get, outer)) continue;
    // A size that is not a number counts as 0: the job doesn't need this launcher's variables.
    int processes = 0;
    std::from_chars(size->data(), size->data() + size->size(), processes);
    if (processes > most) return &outer;
  }
  return nullptr;
}

// Throws if every process of a larger outer launcher has inherited the same RANK and WORLD_SIZE.
// Each would be a job of its own, and all would write the same files. A launcher of ours on each
// machine may run inside an mpirun or srun, which has then started fewer processes than the job
// has.
void CheckNotInsideALargerJob(const GetVariable& get, int world_size) {
  const LauncherVariables* outer = FindLargerJob(get, world_size);
  if (outer == nullptr) return;
  const std::string size = get(outer->world_size).value();
  throw InvalidArgument("WORLD_SIZE is " + std::to_string(world_size) + " but " +
                            outer->world_size + " is " + size + ": " + outer->launcher +
                            " has started more processes than the job has",
                        "unset RANK and WORLD_SIZE for one job of " + size +
                            " processes, or unset " + outer->world_size + " for separate jobs");
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

int ParseInt(const char* name, const std::string& text, int low, int high) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc{} || stop != end || value < low || value > high) {
    throw InvalidArgument(std::string(name) + " must be a whole number from " +
                              std::to_string(low) + " to " + std::to_string(high) + " but is \"" +
                              text + "\"",
                          "correct the environment variable or unset it");
  }
  return value;
}

// Returns the first name of Slurm's short form for several hosts: "r1n03" of
// "r[1-2]n[03-07,9],other".
std::string FirstHost(std::string_view list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const size_t end = std::min(list.find(']', at), list.size());
    const std::string_view inside = list.substr(at + 1, end - at - 1);
    host += inside.substr(0, inside.find_first_of("-,"));
    at = end;
  }
  return host;
}

// Sets rank 0's address and port from Slurm's variables. Every process of the step gets the same
// result.
void MasterFromSlurm(const GetVariable& get, ProcessEnvironment& env) {
  if (const auto nodes = get("SLURM_STEP_NODELIST")) env.master_addr = FirstHost(*nodes);
  if (const auto job = get("SLURM_JOB_ID")) {
    constexpr int kFirst = 15000, kPorts = 10000;
    // Steps of one job may run side by side, so each gets a port of its own.
    const int step = ParseInt("SLURM_STEP_ID", get("SLURM_STEP_ID").value_or("0"), 0, INT32_MAX);
    const int number = ParseInt("SLURM_JOB_ID", *job, 0, INT32_MAX);
    env.master_port = kFirst + (number % kPorts + step % kPorts) % kPorts;
  }
}

// Returns the port where the ranks meet. torchrun itself may listen at MASTER_PORT, with its ranks
// as clients.
int PortBesideTorchrun(const GetVariable& get, int port) {
  constexpr char kRestarts[] = "TORCHELASTIC_RESTART_COUNT";
  if (get("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True") return port;
  const int further = 1 + ParseInt(kRestarts, get(kRestarts).value_or("0"), 0, INT32_MAX) % 100;
  return port + further <= kLargestPort ? port + further : port - further;
}

void ReadMaster(const GetVariable& get, ProcessEnvironment& env) {
  const auto addr = get("MASTER_ADDR"), port = get("MASTER_PORT");
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
  if (port) env.master_port = ParseInt("MASTER_PORT", *port, 1, kLargestPort);
  if (env.launcher == kLaunchers[0].launcher)
    env.master_port = PortBesideTorchrun(get, env.master_port);
  const bool one_machine = env.local_world_size == env.world_size;
  if (!addr && !one_machine && env.launcher != "Slurm") {
    throw InvalidArgument("MASTER_ADDR is not set, and the job's processes run on several machines",
                          "set it to the address of rank 0's machine; `mpirun -x MASTER_ADDR=HOST` "
                          "does so for all processes");
  }
}

// Returns how many processes machine number `node` has by a list such as "2(x3),1": two on each of
// the first three machines, then one. Returns 0 if the list has no entry for the machine.
int TasksOnNode(std::string_view list, int node) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view part = list.substr(0, comma);
    const size_t times = part.find("(x");
    const int tasks = ParseInt("SLURM_STEP_TASKS_PER_NODE", std::string(part.substr(0, times)), 1,
                               kMostProcesses);
    const int nodes = times == std::string_view::npos
                          ? 1
                          : ParseInt("SLURM_STEP_TASKS_PER_NODE",
                                     std::string(part.substr(times + 2, part.size() - times - 3)),
                                     1, kMostProcesses);
    if (node < nodes) return tasks;
    node -= nodes;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return 0;
}

// Sets the local rank and the number of local ranks. Without variables for them, all ranks count as
// ranks of this machine if rank 0's address is local or not given.
void ReadLocal(const GetVariable& get, const LauncherVariables& names, ProcessEnvironment& env) {
  const std::string addr = WithoutBrackets(get("MASTER_ADDR").value_or("localhost"));
  const bool all_here = addr.starts_with("127.") || addr == "localhost" || addr == "::1";
  const auto rank = get(names.local_rank);
  std::optional<std::string> size;
  if (names.local_world_size != nullptr) size = get(names.local_world_size);
  const auto tasks = get("SLURM_STEP_TASKS_PER_NODE"), node = get("SLURM_NODEID");
  int on_node = 0;
  if (env.launcher == "Slurm" && tasks && node) {
    on_node = TasksOnNode(*tasks, ParseInt("SLURM_NODEID", *node, 0, kMostProcesses));
  }
  env.local_rank = rank       ? ParseInt(names.local_rank, *rank, 0, env.world_size - 1)
                   : all_here ? env.rank
                              : 0;
  env.local_world_size = size          ? ParseInt(names.local_world_size, *size, 1, env.world_size)
                         : on_node > 0 ? on_node
                         : all_here    ? env.world_size
                                       : env.local_rank + 1;
  if (env.local_rank >= env.local_world_size) {
    throw InvalidArgument(std::string(names.local_rank) + " is " + std::to_string(env.local_rank) +
                              " but this machine has " + std::to_string(env.local_world_size) +
                              " processes of the job",
                          "correct the environment variable or unset it");
  }
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
      throw InvalidArgument(std::string(rank ? names.rank : names.world_size) + " is set but " +
                                (rank ? names.world_size : names.rank) + " is not",
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
      const auto job = get(name);
      if (!job || !env.job.empty()) continue;
      env.job = *job;
      const auto step = get("SLURM_STEP_ID");
      if (name == std::string_view("SLURM_JOB_ID") && step) env.job += '.' + *step;
    }
    return env;
  }
  return env;
}

namespace {

bool ReadUseCpu(const GetVariable& get) {
  const std::optional<std::string> set = get("ACCELERATE_USE_CPU");
  if (!set) return false;
  const std::string word = absl::AsciiStrToLower(*set);
  for (const char* yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) return false;
  }
  throw InvalidArgument("ACCELERATE_USE_CPU must be true or false but is \"" + *set + "\"",
                        "correct the environment variable or unset it");
}

}  // namespace

void CheckOneLauncherPerMachine(int num_machines, const GetVariable& get) {
  const LauncherVariables* outer = FindLargerJob(get, num_machines);
  if (outer == nullptr) return;
  const std::string size = get(outer->world_size).value();
  throw InvalidArgument(
      std::string(outer->launcher) + " has started " + size + " copies of this launcher (" +
          outer->world_size + "), and each would start a whole job on " +
          std::to_string(num_machines) + (num_machines == 1 ? " machine" : " machines"),
      "let it start the program itself, or start one launcher on each machine with --num_machines; "
      "unset " +
          std::string(outer->world_size) + " for separate jobs");
}

std::string ReadDevice(const GetVariable& get) {
  if (ReadUseCpu(get)) return "cpu";
  return get("LATHE_USE_GPU") ? "cuda" : "auto";
}

int64_t ReadAccumulationSteps(const GetVariable& get) {
  constexpr char kName[] = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  return ParseInt(kName, get(kName).value_or("1"), 1, INT32_MAX);
}

namespace {

std::optional<std::chrono::milliseconds> ReadSeconds(const GetVariable& get, const char* name) {
  const std::optional<std::string> set = get(name);
  if (!set) return std::nullopt;
  double seconds = 0;
  const char* end = set->data() + set->size();
  const auto [stop, code] = std::from_chars(set->data(), end, seconds);
  if (code != std::errc{} || stop != end || !(seconds >= 1 && seconds <= 1e6)) {
    throw InvalidArgument(std::string(name) +
                              " must be a number of seconds from 1 to 1000000 but is \"" + *set +
                              "\"",
                          "correct the environment variable or unset it");
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

std::chrono::milliseconds ReadTimeout(const GetVariable& get) {
  return ReadSeconds(get, "LATHE_TIMEOUT").value_or(std::chrono::minutes(10));
}

std::optional<std::chrono::milliseconds> ReadHeartbeatTimeout(const GetVariable& get) {
  return ReadSeconds(get, "LATHE_HEARTBEAT_TIMEOUT");
}

int64_t ReadRestarts(const GetVariable& get) {
  return ParseInt(kRestartsVariable, get(kRestartsVariable).value_or("0"), 0, INT32_MAX);
}

int ReadBatchProcesses(int num_processes, const GetVariable& get) {
  const std::optional<std::string> set = get(kBatchProcessesVariable);
  if (!set) return num_processes;
  return static_cast<int>(ParseInt(kBatchProcessesVariable, *set, 1, kMostProcesses));
}

}  // namespace lathe
