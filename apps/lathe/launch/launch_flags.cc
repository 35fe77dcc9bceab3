#include "lathe/apps/lathe/launch/launch_flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>

#include "lathe/apps/cli/report_error.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/network.h"

namespace lathe {

// It is long because it is a table: one statement for each flag.
void AddLaunchFlags(FlagTable& table, LaunchFlags& flags) {
  LaunchFlags& o = flags;
  table.Group("Options");
  table.Add("num_processes", &o.num_processes, "number of processes on all machines together")
      .Min(1)
      .Max(kMostProcesses);
  table.Add("cpu", &o.cpu, "compute on the CPU even if there are GPUs");
  table.Add("multi_gpu", &o.multi_gpu,
            "fail unless there are several processes and a GPU for each");
  table
      .Add("gpu_ids", &o.gpu_ids,
           "numbers of the GPUs of this machine to use, such as 0,2 (default: all that "
           "CUDA_VISIBLE_DEVICES names)")
      .ValueName("LIST");
  table
      .Add("mixed_precision", &o.mixed_precision,
           "precision of the program's Accelerator; fp16 needs a GPU")
      .Choices({"no", "bf16", "fp16"});
  table
      .Add("num_threads_per_process", &o.num_threads_per_process,
           "CPU threads of each process; 0: OMP_NUM_THREADS if it is set, else an equal share of "
           "this machine's cores")
      .Min(0)
      .Max(kMostProcesses);
  table
      .Add("num_cpu_threads_per_process", &o.num_threads_per_process,
           "the same as --num_threads_per_process, under Accelerate's name")
      .Min(0)
      .Max(kMostProcesses);
  table
      .Add("timeout", &o.timeout,
           "seconds that the processes wait for one that is late, to join or to do its part, "
           "before they end with an error (default: 600)")
      .Min(1)
      .Max(1e6);
  table
      .Add(
          "heartbeat_timeout", &o.heartbeat_timeout,
          "seconds after which a process that gives no sign of life counts as lost; each gives one "
          "twice a second, whatever it does (default: 30, or --timeout if that is less)")
      .Min(1)
      .Max(1e6);
  table
      .Add("max_restarts", &o.max_restarts,
           "how often to start the job again if a process fails or is lost; finetune then goes on "
           "from its "
           "newest checkpoint")
      .Min(0)
      .Max(1 << 20);
  table
      .Add("restart_processes", &o.restart_processes,
           "with any, a restarted job has only the processes that had not failed")
      .Choices({"same", "any"});
  table.Add("tag_output", &o.tag_output,
            "put the rank in brackets, such as [0], before each line that a process prints");
  table.Add("debug", &o.debug,
            "set ACCELERATE_DEBUG_MODE for the program (Lathe itself always compares the shapes of "
            "what processes exchange)");
  table
      .Add("config_file", &o.config_file,
           "configuration to read (default: " + DefaultConfigPath() + ")")
      .ValueName("FILE");
  table.Add("help", &o.help, "show this text");
  table.Group("Several machines (run the same command on each, but for --machine_rank)");
  table
      .Add("num_machines", &o.num_machines,
           "number of machines; each runs the same number of processes")
      .Min(1)
      .Max(kMostProcesses);
  table.Add("machine_rank", &o.machine_rank, "number of this machine, counted from 0")
      .Min(0)
      .Max(kMostProcesses);
  table.Add("main_process_ip", &o.main_process_ip, "address of machine 0").ValueName("ADDRESS");
  table
      .Add("main_process_port", &o.main_process_port,
           "free port on machine 0 (default: 29500; on one machine, any free port)")
      .Min(0)
      .Max(kLargestPort);
  table
      .Add("port_range", &o.port_range,
           "ports of this machine at which its processes listen for the others', such as "
           "20000-20100 (default: the system chooses)")
      .ValueName("FIRST-LAST");
  table.Add("rdzv_backend", &o.rdzv_backend, "accepted for Accelerate's sake; has no effect")
      .Choices({"static", "c10d"});
  table.Add("dynamo_backend", &o.dynamo_backend, "accepted for Accelerate's sake; has no effect")
      .Choices({"no"});
  table.Add("same_network", &o.same_network, "accepted for Accelerate's sake; has no effect");
}

std::optional<LaunchConfig> FindLaunchConfig(const LaunchFlags& flags) {
  if (!flags.config_file.empty()) return ReadLaunchConfig(flags.config_file);
  std::error_code code;
  if (!std::filesystem::exists(DefaultConfigPath(), code)) return std::nullopt;
  return ReadLaunchConfig(DefaultConfigPath());
}

namespace {

// Returns the number that the variable holds; nullopt if it is not set.
std::optional<int64_t> NumberOf(const GetVariable& get, const char* name, int64_t low,
                                int64_t high) {
  const std::optional<std::string> text = get(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, code] = std::from_chars(text->data(), end, value);
  if (code != std::errc() || stop != end || value < low || value > high) {
    throw UsageError(std::string(name) + " must be a whole number from " + std::to_string(low) +
                         " to " + std::to_string(high) + " but is \"" + *text + "\"",
                     "correct the environment variable, or give --num_machines and its like");
  }
  return value;
}

}  // namespace

void TakeMachineVariables(LaunchFlags& flags, const GetVariable& get) {
  if (flags.num_machines) return;
  const std::optional<int64_t> machines = NumberOf(get, "PET_NNODES", 1, kMostProcesses);
  if (!machines) return;
  flags.num_machines = machines;
  if (!flags.machine_rank) flags.machine_rank = NumberOf(get, "PET_NODE_RANK", 0, *machines - 1);
  if (!flags.machine_rank && *machines > 1) {
    throw UsageError("PET_NNODES is " + std::to_string(*machines) + " but PET_NODE_RANK is not set",
                     "give --machine_rank, the number of this machine");
  }
  // Words such as auto stand for a process on each GPU, which is also the default here.
  const std::string here = get("PET_NPROC_PER_NODE").value_or("auto");
  if (!flags.num_processes && here != "auto" && here != "gpu" && here != "cpu") {
    const auto processes = NumberOf(get, "PET_NPROC_PER_NODE", 1, kMostProcesses / *machines);
    flags.num_processes = *machines * *processes;
  }
  if (*machines == 1) return;
  const char* const address = get("PET_MASTER_ADDR") ? "PET_MASTER_ADDR" : "MASTER_ADDR";
  const char* const port = get("PET_MASTER_PORT") ? "PET_MASTER_PORT" : "MASTER_PORT";
  if (flags.main_process_ip.empty()) flags.main_process_ip = get(address).value_or("");
  if (!flags.main_process_port) flags.main_process_port = NumberOf(get, port, 1, kLargestPort);
}

std::string PrecisionOf(const LaunchFlags& flags, const LaunchConfig& config) {
  return flags.mixed_precision.empty() ? config.mixed_precision.value_or("")
                                       : flags.mixed_precision;
}

bool IsOnCpu(const LaunchFlags& flags, const LaunchConfig& config) {
  return flags.cpu.value_or(!flags.AsksForGpus() && config.OnCpu());
}

namespace {

// Throws if the user asked for GPUs and there are none, instead of training on the CPU silently.
void CheckGpus(const LaunchFlags& flags, const LaunchConfig& config, int num_gpus) {
  std::string by;
  if (config.distributed_type == "MULTI_GPU") by = "the configuration's distributed_type MULTI_GPU";
  if (!flags.gpu_ids.empty()) by = "--gpu_ids " + flags.gpu_ids;
  if (flags.multi_gpu) by = "--multi_gpu";
  if (num_gpus == 0 && !by.empty()) {
    throw UsageError(by + " needs a GPU, but no GPU is visible on this machine",
                     "--cpu computes on the CPU; `lathe env` shows which GPUs there are");
  }
}

// Returns the number of GPUs in a list such as "2,0". Throws for a GPU that isn't installed,
// because CUDA would stop looking there, and for one that is named twice.
int CountGpus(const std::string& name, const std::string& gpu_ids, int installed) {
  std::set<int> ids;
  std::istringstream list(gpu_ids);
  for (std::string text; std::getline(list, text, ',');) {
    int id = installed;  // stays so if the number is too large to read
    std::from_chars(text.data(), text.data() + text.size(), id);
    if (id >= installed) {
      throw UsageError(
          name + " is " + gpu_ids + ", but this machine has " + std::to_string(installed) +
              (installed == 1 ? " GPU" : " GPUs"),
          "GPUs are numbered from 0; `lathe env` shows which there are; --cpu uses none");
    }
    if (!ids.insert(id).second)
      throw UsageError(name + " " + gpu_ids + " names GPU " + text + " twice",
                       "name each GPU once");
  }
  return static_cast<int>(ids.size());
}

// Sets the number of machines, this machine's place among them and the address where they meet.
void SetMachines(const LaunchFlags& flags, const LaunchConfig& config, LaunchOptions& options) {
  constexpr int64_t kUsualPort = 29500;  // as torchrun and Accelerate use
  options.num_machines = static_cast<int>(flags.num_machines.value_or(config.num_machines));
  const bool one_machine = options.num_machines == 1;
  // A job on this machine alone ignores the place among several machines that the file gives it.
  options.machine_rank =
      static_cast<int>(flags.machine_rank.value_or(one_machine ? 0 : config.machine_rank));
  std::string ip = flags.main_process_ip;
  if (ip.empty() && !one_machine) ip = config.main_process_ip.value_or("");
  if (ip.empty() && !one_machine) {
    throw UsageError("--main_process_ip is missing, but a job on " +
                         std::to_string(options.num_machines) + " machines needs it",
                     "give the address of the machine with --machine_rank 0");
  }
  if (!ip.empty()) options.main_process_ip = WithoutBrackets(ip);
  std::optional<int64_t> port = flags.main_process_port;
  if (!port && (!one_machine || config.num_machines == 1)) port = config.main_process_port;
  options.main_process_port = static_cast<int>(port.value_or(one_machine ? 0 : kUsualPort));
}

// Sets the number of GPUs that the processes use, and the variables that tell them so.
void SetDevices(const LaunchFlags& flags, const LaunchConfig& config, int num_gpus,
                int installed_gpus, LaunchOptions& options) {
  options.num_gpus = num_gpus;
  const std::string gpu_ids = flags.gpu_ids.empty() ? config.gpu_ids : flags.gpu_ids;
  if (!IsGpuList(gpu_ids)) {
    throw UsageError("--gpu_ids must be all or a list such as 0,1 but is \"" + gpu_ids + "\"",
                     "`lathe env` shows which GPUs there are");
  }
  if (IsOnCpu(flags, config)) {
    if (flags.AsksForGpus()) {
      throw UsageError(std::string("--cpu and ") + (flags.multi_gpu ? "--multi_gpu" : "--gpu_ids") +
                           " contradict each other",
                       "leave one of them out");
    }
    options.num_gpus = 0;
    options.environment.emplace_back("ACCELERATE_USE_CPU", "1");
    return;
  }
  CheckGpus(flags, config, gpu_ids == "all" ? num_gpus : installed_gpus);
  if (gpu_ids != "all") {
    options.num_gpus =
        CountGpus(flags.gpu_ids.empty() ? "the configuration's gpu_ids" : "--gpu_ids", gpu_ids,
                  installed_gpus);
    options.environment.emplace_back("CUDA_VISIBLE_DEVICES", gpu_ids);
  }
  // Overrides variables that the user has exported for other programs.
  if (flags.AsksForGpus() || config.distributed_type == "MULTI_GPU") {
    options.environment.emplace_back("ACCELERATE_USE_CPU", "false");
    options.environment.emplace_back("LATHE_USE_GPU", "1");
  }
}

}  // namespace

LaunchOptions MakeLaunchOptions(const LaunchFlags& flags, const std::optional<LaunchConfig>& file,
                                int num_gpus, int installed_gpus) {
  const LaunchConfig config = file.value_or(LaunchConfig());
  LaunchOptions options;
  SetMachines(flags, config, options);
  options.num_threads_per_process = static_cast<int>(flags.num_threads_per_process);
  options.supervisor.tag_output = flags.tag_output;
  options.max_restarts = static_cast<int>(flags.max_restarts);
  options.restart_with_ranks_left = flags.restart_processes == "any";
  if (flags.timeout)
    options.environment.emplace_back("LATHE_TIMEOUT", std::to_string(*flags.timeout));
  if (flags.heartbeat_timeout) {
    options.environment.emplace_back("LATHE_HEARTBEAT_TIMEOUT",
                                     std::to_string(*flags.heartbeat_timeout));
  }
  if (!flags.port_range.empty())
    options.environment.emplace_back(kPortRangeVariable, flags.port_range);
  SetDevices(flags, config, num_gpus, installed_gpus, options);
  const std::optional<int64_t> processes =
      flags.num_processes ? flags.num_processes : config.num_processes;
  options.num_processes = static_cast<int>(
      processes.value_or(int64_t{options.num_machines} * std::max(options.num_gpus, 1)));
  const std::string precision = PrecisionOf(flags, config);
  if (precision == "fp16" && options.num_gpus == 0) {
    throw UsageError("mixed_precision fp16 needs a GPU, but the processes use the CPU",
                     "use bf16, which works on the CPU, too");
  }
  if (!precision.empty()) options.environment.emplace_back("ACCELERATE_MIXED_PRECISION", precision);
  if (flags.multi_gpu && options.num_processes < 2) {
    throw UsageError("--multi_gpu needs several processes, but there is one",
                     "give --num_processes, or leave --multi_gpu out");
  }
  if (flags.debug || config.debug) options.environment.emplace_back("ACCELERATE_DEBUG_MODE", "1");
  try {
    if (!flags.port_range.empty()) ParsePortRange("--port_range", flags.port_range);
    CheckLaunchOptions(options);
  } catch (const Error& e) {
    throw UsageError(e.message(), e.hint());
  }
  return options;
}

}  // namespace lathe
