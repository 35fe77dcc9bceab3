#include "lathe/apps/lathe/launch/env_command.h"

#include <dnnl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string_view>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/launch/launch_config.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/isa.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_libraries.h"
#include "lathe/core/gemm.h"
#include "lathe/core/version.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kUsage[] =
    "Prints what a bug report should contain: Lathe's version, the machine, the\n"
    "environment variables that affect Lathe, and the configuration for launch.\n"
    "\n"
    "Usage:\n"
    "  lathe env\n";

// Returns the text after "name:" in a file of /proc; "" if there is no such line.
std::string Field(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string System() {
  utsname name{};
  uname(&name);
  return std::string(name.sysname) + " " + name.release + " " + name.machine;
}

// Returns the instruction set level that the kernels use, and the instructions for bfloat16
// products.
std::string InstructionSet() try {
  const int level = cpu::IsaLevel();
  const std::string text = "x86-64-v" + std::to_string(std::min(level, 4));
  if (level < 5) return text;
  if (!HasFastBFloat16()) return text + ", avx512_bf16 (but not for products)";
  const int products = dnnl_get_effective_cpu_isa(), amx = dnnl_cpu_isa_avx512_core_amx;
  return text + ((products & amx) == amx ? ", avx512_bf16, amx_bf16" : ", avx512_bf16");
} catch (const Error& error) {
  return error.message();  // LATHE_MAX_ISA is wrong; PrintVariables shows it
}

std::string Memory() {
  constexpr double kGibibyte = 1 << 30;
  std::ostringstream text;
  text.precision(1);
  text << std::fixed
       << static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
              static_cast<double>(sysconf(_SC_PAGESIZE)) / kGibibyte
       << " GiB";
  return text.str();
}

std::string Gpus() {
  std::error_code code;
  std::string models;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", code)) {
    models += (models.empty() ? ": " : ", ") + Field(gpu.path() / "information", "Model");
  }
  return std::to_string(VisibleGpus()) + models;
}

// The devices that the program was built for, and those that it can use here.
std::string Devices() {
  DeviceBackend* backend = FindDeviceBackend();
  if (backend == nullptr) return "CPU (this program was built without CUDA)";
  std::string text = "CPU; " + backend->DescribeBuild() + ": ";
  const int count = backend->Count();
  if (count == 0) return text + "none (" + backend->UnavailableReason() + ")";
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "" : "; ") + ToString(Device{DeviceType::kCUDA, i}) + " is " +
            backend->Describe(i);
  }
  return text;
}

std::string OneDnn() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

// Prints the variables that tell launchers, OpenMP and Accelerate what to do. Tokens such as
// HF_TOKEN are left out, and addresses, which may hold a password.
void PrintVariables() {
  constexpr std::string_view kPrefixes[] = {"RANK=",
                                            "WORLD_SIZE=",
                                            "LOCAL_RANK=",
                                            "LOCAL_WORLD_SIZE=",
                                            "MASTER_",
                                            "OMP_",
                                            "GOMP_",
                                            "LATHE_",
                                            "ACCELERATE_",
                                            "CUDA_",
                                            "NCCL_",
                                            "GLOO_",
                                            "HF_HOME=",
                                            "ONEDNN_",
                                            "DNNL_",
                                            "HF_HUB_",
                                            "TRANSFORMERS_OFFLINE="};
  std::vector<std::string_view> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                    [&](std::string_view prefix) { return text.starts_with(prefix); })) {
      found.push_back(text);
    }
  }
  std::sort(found.begin(), found.end());
  std::cout << "- Environment:" << (found.empty() ? " none of the variables that affect Lathe" : "")
            << '\n';
  for (const std::string_view variable : found) std::cout << "    " << variable << '\n';
}

void PrintConfig() {
  const std::string path = DefaultConfigPath();
  std::cout << "- Configuration: " << path;
  std::error_code code;
  if (!fs::exists(path, code)) {
    std::cout << " (not there)\n";
    return;
  }
  try {
    std::istringstream text(ReadFile(path));
    std::cout << '\n';
    for (std::string line; std::getline(text, line);) std::cout << "    " << line << '\n';
    ReadLaunchConfig(path);
  } catch (const Error& e) {
    std::cout << "    can't be used: " << e.message() << '\n';
  }
}

}  // namespace

int RunEnv(const std::vector<std::string>& args) {
  bool help = false;
  FlagTable flags(kUsage);
  flags.Add("help", &help, "show this text");
  const int usage = ReportErrors(kUsageExitCode, [&] {
    const auto rest = flags.Parse(args);
    if (!rest.empty()) {
      throw InvalidArgument("unknown argument \"" + rest[0] + "\"", "lathe env takes no arguments");
    }
    return 0;
  });
  if (usage != 0) return usage;
  if (help) {
    std::cout << flags.Help();
    return 0;
  }
  std::cout << "- Lathe: " << kVersion << "\n- Compiler: GCC " << __VERSION__
            << "\n- System: " << System()
            << "\n- Processor: " << Field("/proc/cpuinfo", "model name")
            << "\n- Instruction set: " << InstructionSet() << "\n- Cores: " << UsableCores()
            << " usable\n- Memory: " << Memory() << "\n- GPUs: " << Gpus()
            << "\n- Devices: " << Devices() << "\n- oneDNN: " << OneDnn() << '\n';
  // Devices() has already said so if the program has no CUDA.
  const bool has_devices = FindDeviceBackend() != nullptr;
  for (const std::string& line :
       has_devices ? DescribeDeviceLibraries() : std::vector<std::string>()) {
    std::cout << "- Library for GPUs: " << line << '\n';
  }
  PrintVariables();
  PrintConfig();
  return 0;
}

}  // namespace lathe
