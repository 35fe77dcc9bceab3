// Tests how flags, a configuration file and a machine's GPUs combine.
#include "lathe/apps/lathe/launch/launch_flags.h"

#include <gtest/gtest.h>

#include <map>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

std::string Variable(const LaunchOptions& options, const std::string& name) {
  for (const auto& [key, value] : options.environment) {
    if (key == name) return value;
  }
  return "(none)";
}

LaunchOptions Made(const LaunchFlags& flags, const std::optional<LaunchConfig>& file,
                   int num_gpus) {
  return MakeLaunchOptions(flags, file, num_gpus, num_gpus);
}

std::string Refusal(const LaunchFlags& flags, const std::optional<LaunchConfig>& file,
                    int num_gpus) {
  try {
    Made(flags, file, num_gpus);
  } catch (const Error& e) {
    EXPECT_NE(e.hint(), "");
    return e.message();
  }
  return "(none)";
}

LaunchFlags Parsed(const std::vector<std::string>& args) {
  LaunchFlags flags;
  FlagTable table("usage");
  AddLaunchFlags(table, flags);
  EXPECT_TRUE(table.Parse(args).empty());
  return flags;
}

LaunchConfig MultiGpu(int64_t num_processes, const std::string& gpu_ids = "all") {
  LaunchConfig config;
  config.distributed_type = "MULTI_GPU";
  config.num_processes = num_processes;
  config.gpu_ids = gpu_ids;
  return config;
}

// Returns what the arguments say together with these variables.
LaunchOptions MadeWith(const std::map<std::string, std::string>& variables,
                       const std::vector<std::string>& args) {
  LaunchFlags flags = Parsed(args);
  TakeMachineVariables(flags, [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
  return Made(flags, std::nullopt, 0);
}

// The variables of the second pod of a PyTorchJob with nprocPerNode "2".
const std::map<std::string, std::string> kSecondPod = {{"PET_NNODES", "3"},
                                                       {"PET_NODE_RANK", "1"},
                                                       {"PET_NPROC_PER_NODE", "2"},
                                                       {"PET_MASTER_ADDR", "tune-master-0"},
                                                       {"PET_MASTER_PORT", "23456"}};

TEST(LaunchFlags, MachinesOfAPyTorchJob) {
  std::map<std::string, std::string> variables = kSecondPod;
  LaunchOptions options = MadeWith(variables, {});
  EXPECT_EQ(options.num_machines, 3);
  EXPECT_EQ(options.machine_rank, 1);
  EXPECT_EQ(options.num_processes, 6);
  EXPECT_EQ(options.main_process_ip, "tune-master-0");
  EXPECT_EQ(options.main_process_port, 23456);
  options = MadeWith(variables, {"--num_processes", "12", "--main_process_port", "7"});
  EXPECT_EQ(options.num_machines, 3);
  EXPECT_EQ(options.num_processes, 12);
  EXPECT_EQ(options.main_process_port, 7);
  options = MadeWith(variables, {"--num_machines", "1", "--num_processes", "2"});
  EXPECT_EQ(options.num_machines, 1);
  EXPECT_EQ(options.machine_rank, 0);
  variables["PET_NPROC_PER_NODE"] = "auto";
  variables.erase("PET_MASTER_ADDR");
  variables["MASTER_ADDR"] = "10.0.0.1";
  options = MadeWith(variables, {});
  EXPECT_EQ(options.num_processes, 3);
  EXPECT_EQ(options.main_process_ip, "10.0.0.1");
}

TEST(LaunchFlags, RefusedVariablesOfAPyTorchJob) {
  const auto refusal = [&](const char* name, const char* value) {
    std::map<std::string, std::string> variables = kSecondPod;
    if (value == nullptr) {
      variables.erase(name);
    } else {
      variables[name] = value;
    }
    std::string message = "(none)";
    try {
      MadeWith(variables, {});
    } catch (const Error& e) {
      EXPECT_NE(e.hint(), "");
      message = e.message();
    }
    return message;
  };
  EXPECT_EQ(refusal("PET_NNODES", "1:4"),
            "PET_NNODES must be a whole number from 1 to 1048576 but is \"1:4\"");
  EXPECT_EQ(refusal("PET_NODE_RANK", "3"),
            "PET_NODE_RANK must be a whole number from 0 to 2 but is \"3\"");
  EXPECT_EQ(refusal("PET_NODE_RANK", nullptr), "PET_NNODES is 3 but PET_NODE_RANK is not set");
  EXPECT_EQ(refusal("PET_NPROC_PER_NODE", "two"),
            "PET_NPROC_PER_NODE must be a whole number from 1 to 349525 but is \"two\"");
  EXPECT_EQ(refusal("PET_MASTER_ADDR", nullptr),
            "--main_process_ip is missing, but a job on 3 machines needs it");
}

TEST(LaunchFlags, AProcessForEachGpuOrOneThatUsesAllCores) {
  for (const int gpus : {0, 1, 2}) {
    const LaunchOptions options = Made({}, std::nullopt, gpus);
    EXPECT_EQ(options.num_processes, std::max(gpus, 1));
    EXPECT_EQ(options.num_gpus, gpus);
    EXPECT_EQ(Variable(options, "ACCELERATE_USE_CPU"), "(none)");
    EXPECT_EQ(Variable(options, "CUDA_VISIBLE_DEVICES"), "(none)");
  }
  EXPECT_EQ(Refusal(Parsed({"--num_processes", "2"}), std::nullopt, 1),
            "there are 2 processes but 1 GPU on this machine");
  const LaunchOptions on_cpu = Made(Parsed({"--cpu"}), std::nullopt, 2);
  EXPECT_EQ(on_cpu.num_processes, 1);
  EXPECT_EQ(on_cpu.num_gpus, 0);
  EXPECT_EQ(Variable(on_cpu, "ACCELERATE_USE_CPU"), "1");
}

TEST(LaunchFlags, ChosenGpus) {
  const LaunchOptions options = Made(Parsed({"--gpu_ids", "0,2"}), std::nullopt, 4);
  EXPECT_EQ(options.num_processes, 2);
  EXPECT_EQ(Variable(options, "CUDA_VISIBLE_DEVICES"), "0,2");
  // Flags override the file.
  EXPECT_EQ(Variable(Made({}, MultiGpu(2, "1,3"), 4), "CUDA_VISIBLE_DEVICES"), "1,3");
  EXPECT_EQ(
      Variable(Made(Parsed({"--gpu_ids", "3,0"}), MultiGpu(2, "1,3"), 4), "CUDA_VISIBLE_DEVICES"),
      "3,0");
  EXPECT_EQ(
      Variable(Made(Parsed({"--gpu_ids=all"}), MultiGpu(2, "1,3"), 4), "CUDA_VISIBLE_DEVICES"),
      "(none)");
  LaunchConfig on_cpu;
  on_cpu.use_cpu = true;
  EXPECT_EQ(Variable(Made(Parsed({"--gpu_ids", "1"}), on_cpu, 4), "ACCELERATE_USE_CPU"), "false");
  EXPECT_EQ(Refusal(Parsed({"--gpu_ids", "first"}), std::nullopt, 4),
            "--gpu_ids must be all or a list such as 0,1 but is \"first\"");
  for (const char* ids : {"4", "0,4", "99999999999999999999"}) {
    EXPECT_EQ(Refusal(Parsed({"--gpu_ids", ids}), std::nullopt, 4),
              std::string("--gpu_ids is ") + ids + ", but this machine has 4 GPUs");
  }
  EXPECT_EQ(Refusal({}, MultiGpu(2, "0,1"), 1),
            "the configuration's gpu_ids is 0,1, but this machine has 1 GPU");
  EXPECT_EQ(Refusal(Parsed({"--gpu_ids", "1,1"}), std::nullopt, 4),
            "--gpu_ids 1,1 names GPU 1 twice");
  // --gpu_ids numbers the installed GPUs, whatever CUDA_VISIBLE_DEVICES leaves of them.
  EXPECT_EQ(MakeLaunchOptions(Parsed({"--gpu_ids", "1,2"}), std::nullopt, 0, 4).num_processes, 2);
  EXPECT_EQ(Refusal(Parsed({"--num_processes", "3", "--gpu_ids", "0,1"}), std::nullopt, 4),
            "there are 3 processes but 2 GPUs on this machine");
}

TEST(LaunchFlags, WhoAsksForGpusIsNotGivenTheCpu) {
  const std::string none = " needs a GPU, but no GPU is visible on this machine";
  EXPECT_EQ(Refusal({}, MultiGpu(2), 0), "the configuration's distributed_type MULTI_GPU" + none);
  EXPECT_EQ(Refusal(Parsed({"--multi_gpu"}), std::nullopt, 0), "--multi_gpu" + none);
  EXPECT_EQ(Refusal(Parsed({"--gpu_ids", "0,1"}), std::nullopt, 0), "--gpu_ids 0,1" + none);
  EXPECT_EQ(Made(Parsed({"--cpu"}), MultiGpu(2), 0).num_processes, 2);
  EXPECT_EQ(Refusal(Parsed({"--multi_gpu"}), std::nullopt, 1),
            "--multi_gpu needs several processes, but there is one");
  EXPECT_EQ(Made(Parsed({"--multi_gpu"}), std::nullopt, 2).num_processes, 2);
  EXPECT_EQ(Refusal(Parsed({"--multi_gpu", "--cpu"}), std::nullopt, 2),
            "--cpu and --multi_gpu contradict each other");
  EXPECT_EQ(Refusal(Parsed({"--cpu", "--gpu_ids", "0"}), std::nullopt, 2),
            "--cpu and --gpu_ids contradict each other");
}

// Asking for GPUs overrides variables that were exported for other programs.
TEST(LaunchFlags, GpusThatWereAskedForGoBeforeTheEnvironment) {
  EXPECT_EQ(Variable(Made({}, MultiGpu(2), 2), "ACCELERATE_USE_CPU"), "false");
  EXPECT_EQ(Variable(Made({}, MultiGpu(2), 2), "LATHE_USE_GPU"), "1");
  EXPECT_EQ(Variable(Made({}, std::nullopt, 2), "LATHE_USE_GPU"), "(none)");
  EXPECT_EQ(Variable(Made(Parsed({"--multi_gpu"}), std::nullopt, 2), "ACCELERATE_USE_CPU"),
            "false");
  EXPECT_EQ(Variable(Made({}, std::nullopt, 2), "ACCELERATE_USE_CPU"), "(none)");
}

TEST(LaunchFlags, MachineRanksThatNoMachineHas) {
  for (const char* rank : {"4294967296", "4294967297", "-1"}) {
    LaunchFlags flags;
    FlagTable table("usage");
    AddLaunchFlags(table, flags);
    EXPECT_THROW(table.Parse({"--machine_rank", rank}), Error) << rank;
  }
}

// On one machine, the rank, address and port of a file for several machines are ignored.
TEST(LaunchFlags, OneMachineOfAFileForSeveral) {
  LaunchConfig file;
  file.distributed_type = "MULTI_CPU";
  file.num_processes = 4;
  file.num_machines = 2;
  file.machine_rank = 1;
  file.main_process_ip = "node0";
  file.main_process_port = 1234;
  const LaunchOptions both = Made({}, file, 0);
  EXPECT_EQ(both.num_processes, 4);
  EXPECT_EQ(both.machine_rank, 1);
  EXPECT_EQ(both.main_process_ip, "node0");
  EXPECT_EQ(both.main_process_port, 1234);
  const LaunchOptions one = Made(Parsed({"--num_machines", "1"}), file, 0);
  EXPECT_EQ(one.num_processes, 4);  // on all machines together
  EXPECT_EQ(one.machine_rank, 0);
  EXPECT_EQ(one.main_process_ip, "127.0.0.1");
  EXPECT_EQ(one.main_process_port, 0);
  const LaunchOptions three =
      Made(Parsed({"--num_machines", "3", "--num_processes", "9"}), file, 0);
  EXPECT_EQ(three.num_processes, 9);
  EXPECT_EQ(three.main_process_ip, "node0");
  EXPECT_EQ(three.main_process_port, 1234);
  file.num_machines = 1;
  EXPECT_EQ(Made({}, file, 0).main_process_port, 1234);
}

TEST(LaunchFlags, DebugAndWhatHasNoEffect) {
  const LaunchOptions options = Made(
      Parsed({"--debug", "--same_network", "--rdzv_backend", "static", "--dynamo_backend", "no"}),
      std::nullopt, 0);
  EXPECT_EQ(Variable(options, "ACCELERATE_DEBUG_MODE"), "1");
  EXPECT_EQ(Variable(Made({}, std::nullopt, 0), "ACCELERATE_DEBUG_MODE"), "(none)");
}

}  // namespace
}  // namespace lathe
