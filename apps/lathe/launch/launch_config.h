// Accelerate's default_config.yaml: how `lathe launch` starts a job where no option says otherwise.
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
  // Keys that mean something to Accelerate alone, and their values in YAML, on a line each.
  std::map<std::string, std::string> others;

  bool OnCpu() const { return use_cpu || distributed_type == "MULTI_CPU"; }
};

// Whether `text` may stand for LaunchConfig::gpu_ids.
bool IsGpuList(const std::string& text);

// $HF_HOME/accelerate/default_config.yaml, where HF_HOME is ~/.cache/huggingface unless it is set.
std::string DefaultConfigPath();

// All keys that Accelerate writes are understood; those that have no meaning here (TPUs, Python)
// are kept as they are. Throws `file:line: ...` for what is no YAML, an unknown key, a value of the
// wrong type or out of range, and for what Lathe does not do (FSDP, DeepSpeed, fp8, ...).
LaunchConfig ReadLaunchConfig(const std::string& path);

// As a file that both Lathe and Accelerate read.
std::string FormatLaunchConfig(const LaunchConfig& config);

}  // namespace lathe
