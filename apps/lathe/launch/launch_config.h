// Accelerate's default_config.yaml: how `lathe launch` starts a job unless options say otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lathe {

struct LaunchConfig {
  std::string distributed_type = "NO";         // or MULTI_CPU, MULTI_GPU
  std::optional<std::string> mixed_precision;  // no, bf16 or fp16
  bool use_cpu = false, debug = false;
  std::optional<int64_t> num_processes;  // of all machines together
  int64_t num_machines = 1, machine_rank = 0;
  std::optional<std::string> main_process_ip;
  std::optional<int64_t> main_process_port;
  std::string gpu_ids = "all";  // or "0,2"
  // The keys that only Accelerate uses, with their values as one line of YAML.
  std::map<std::string, std::string> others;

  bool OnCpu() const { return use_cpu || distributed_type == "MULTI_CPU"; }
};

// Returns true if `text` is valid for LaunchConfig::gpu_ids: "all", or numbers with commas between
// them.
bool IsGpuList(const std::string& text);

// Returns $HF_HOME/accelerate/default_config.yaml. If HF_HOME is not set, it is
// $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface.
std::string DefaultConfigPath();

// Reads the file. All keys that Accelerate writes are understood; those without a meaning here (for
// TPUs, Python) are kept as they are. Errors name the file and the line. They are thrown for what
// is no YAML, for unknown keys, and for values of the wrong type or out of range. What Lathe does
// not support (FSDP, DeepSpeed, fp8, ...) is an error, too.
LaunchConfig ReadLaunchConfig(const std::string& path);

// Returns the text of a file that both Lathe and Accelerate read.
std::string FormatLaunchConfig(const LaunchConfig& config);

}  // namespace lathe
