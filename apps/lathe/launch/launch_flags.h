// The options that `lathe launch` and `lathe test` have in common, and how they combine with a
// configuration file and this machine's GPUs.
//
//   LaunchFlags flags;
//   FlagTable table(kUsage);
//   AddLaunchFlags(table, flags);
//   ...
//   LaunchProgram(command, MakeLaunchOptions(flags, FindLaunchConfig(flags)));
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/lathe/launch/launch_config.h"
#include "lathe/distributed/launch/launch.h"

namespace lathe {

struct LaunchFlags {
  std::optional<int64_t> num_processes, num_machines, machine_rank, main_process_port;
  std::string main_process_ip, mixed_precision, config_file, gpu_ids;
  std::optional<bool> cpu;
  bool multi_gpu = false, debug = false;
  int64_t num_threads_per_process = 0;
  std::optional<int64_t> timeout, heartbeat_timeout;  // seconds
  std::string port_range;
  int64_t max_restarts = 0;
  std::string restart_processes = "same";
  bool tag_output = false, help = false;
  // Accelerate's options that have no effect here.
  std::string rdzv_backend, dynamo_backend;
  bool same_network = true;

  bool AsksForGpus() const { return multi_gpu || !gpu_ids.empty(); }
};

// Adds two groups: general options, including --help, and options for several machines.
void AddLaunchFlags(FlagTable& table, LaunchFlags& flags);

// Reads the file that --config_file names, or the default one if it exists. Otherwise returns
// nullopt.
std::optional<LaunchConfig> FindLaunchConfig(const LaunchFlags& flags);

// Sets the flags for several machines that the user has not given. They come from the variables by
// which Kubernetes' PyTorchJob describes its pods to torchrun. These are PET_NNODES, PET_NODE_RANK,
// PET_NPROC_PER_NODE, PET_MASTER_ADDR and PET_MASTER_PORT, or else MASTER_ADDR and MASTER_PORT.
// Does nothing if the user gives the number of machines, or if PET_NNODES is not set. Throws
// UsageError, naming the variable, if one is wrong or missing.
void TakeMachineVariables(LaunchFlags& flags, const GetVariable& get = OwnVariable);

// Return the precision, and whether the job computes on the CPU. The flags override the file.
std::string PrecisionOf(const LaunchFlags& flags, const LaunchConfig& config);  // "": neither says
bool IsOnCpu(const LaunchFlags& flags, const LaunchConfig& config);

// Combines the flags, the file and this machine's GPUs. Flags override the file, which overrides
// defaults. `num_gpus`: the GPUs that the program can use; `installed_gpus`: those that gpu_ids
// numbers. Throws UsageError for options that don't go together.
LaunchOptions MakeLaunchOptions(const LaunchFlags& flags, const std::optional<LaunchConfig>& file,
                                int num_gpus = VisibleGpus(), int installed_gpus = InstalledGpus());

}  // namespace lathe
