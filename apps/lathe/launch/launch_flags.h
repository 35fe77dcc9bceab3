// The options of `lathe launch` that `lathe test` has, too, and what they, a configuration file and
// this machine make together.
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
  std::optional<int64_t> timeout;  // seconds
  bool tag_output = false, help = false;
  // Accelerate's, of no effect.
  std::string rdzv_backend, dynamo_backend;
  bool same_network = true;

  bool AskForGpus() const { return multi_gpu || !gpu_ids.empty(); }
};

// Two groups: options, with --help, and those for several machines.
void AddLaunchFlags(FlagTable& table, LaunchFlags& flags);

// Of the file that was named, or the usual one if it is there.
std::optional<LaunchConfig> FindLaunchConfig(const LaunchFlags& flags);

// What a job has where neither flags nor file say otherwise.
std::string PrecisionOf(const LaunchFlags& flags, const LaunchConfig& config);  // "": nobody says
bool IsOnCpu(const LaunchFlags& flags, const LaunchConfig& config);

// Flags go before the file, which goes before what this machine has. `num_gpus`: those that the
// program can use; `installed_gpus`: those that gpu_ids counts. Throws UsageError for what doesn't
// go together.
LaunchOptions MakeLaunchOptions(const LaunchFlags& flags, const std::optional<LaunchConfig>& file,
                                int num_gpus = VisibleGpus(), int installed_gpus = InstalledGpus());

}  // namespace lathe
