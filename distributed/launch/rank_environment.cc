#include "lathe/distributed/launch/rank_environment.h"

#include <absl/status/status.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string_view>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

// Returns true for a variable by which some launcher tells a process its place in the job.
bool IsPlaceVariable(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"OMPI_COMM_WORLD_", "PMI_", "PMIX_", "TORCHELASTIC_",
                                            "SLURM_STEP_"};
  // NCCL_COMM_ID would make NCCL's ranks meet at another address than the job's.
  constexpr std::string_view kNames[] = {
      "RANK",          "WORLD_SIZE",      "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
      "GROUP_RANK",    "ROLE_RANK",       "ROLE_WORLD_SIZE", "MASTER_ADDR",
      "MASTER_PORT",   "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
      "SLURM_LOCALID", "SLURM_NODEID",    "NCCL_COMM_ID"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

void Set(Environment& environment, const std::string& name, const std::string& value) {
  std::erase_if(environment, [&](const auto& variable) { return variable.first == name; });
  environment.emplace_back(name, value);
}

}  // namespace

int LocalProcesses(const LaunchOptions& options) {
  return options.num_processes / options.num_machines;
}

std::string RandomId() {
  std::random_device random;
  std::ostringstream id;
  id << std::hex << random() << random();
  return id.str();
}

Socket HoldMainPort(const LaunchOptions& options) {
  if (options.machine_rank != 0) return Socket();
  const char* hint = options.num_machines > 1
                         ? "choose another port with main_process_port, the same on all machines"
                         : "choose another port with main_process_port; 0 takes a free one";
  try {
    return Bind(options.main_process_ip, options.main_process_port);
  } catch (const Error& e) {
    const bool address = e.code() == absl::StatusCode::kInvalidArgument;
    throw Error(
        e.code(), e.message(),
        address ? "main_process_ip must be an address of the machine with machine_rank 0" : hint);
  }
}

Environment JobEnvironment(const LaunchOptions& options, const EndedRanksRecord& ended,
                           const Socket& main_port) {
  Environment environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = std::min(text.find('='), text.size());
    const std::string_view name = text.substr(0, equals);
    if (equals == text.size() || IsPlaceVariable(name)) continue;
    environment.emplace_back(name, text.substr(equals + 1));
  }
  const int port = main_port ? LocalPort(main_port) : options.main_process_port;
  const int local_size = LocalProcesses(options);
  Set(environment, "WORLD_SIZE", std::to_string(options.num_processes));
  Set(environment, "LOCAL_WORLD_SIZE", std::to_string(local_size));
  Set(environment, "MASTER_ADDR", options.main_process_ip);
  Set(environment, "MASTER_PORT", std::to_string(port));
  Set(environment, kEndedRanksVariable, ended.Variable(port));
  // All machines must choose the same job name without having communicated.
  const char* job = std::getenv("LATHE_JOB_ID");
  if (options.num_machines == 1) {
    Set(environment, "LATHE_JOB_ID", RandomId());
  } else if (job == nullptr || *job == 0) {
    Set(environment, "LATHE_JOB_ID", AddressText(options.main_process_ip, port));
  }
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (options.num_threads_per_process > 0 || threads == nullptr || *threads == 0) {
    const int share = std::max(UsableCores() / local_size, 1);
    Set(environment, "OMP_NUM_THREADS",
        std::to_string(options.num_threads_per_process > 0 ? options.num_threads_per_process
                                                           : share));
  }
  for (const auto& [name, value] : options.environment) Set(environment, name, value);
  return environment;
}

Environment RankEnvironment(Environment environment, int rank, int local_rank) {
  Set(environment, "RANK", std::to_string(rank));
  Set(environment, "LOCAL_RANK", std::to_string(local_rank));
  return environment;
}

}  // namespace lathe
