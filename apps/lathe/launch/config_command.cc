#include "lathe/apps/lathe/launch/config_command.h"

#include <absl/status/status.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/launch/launch_config.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/distributed/launch/launch.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kUsage[] =
    "Asks how jobs run on this machine, and writes the answers to a file, which\n"
    "`lathe launch` and `lathe test` read.\n"
    "\n"
    "Usage:\n"
    "  lathe config [options]            asks; an empty answer means the value in [ ]\n"
    "  lathe config default [options]    asks nothing; replaces no file that exists\n";

struct ConfigFlags {
  std::string config_file = DefaultConfigPath(), mixed_precision = "no", help_text;
  bool use_defaults = false, help = false;
};

ConfigFlags ParseConfigFlags(const std::vector<std::string>& args) {
  ConfigFlags o;
  FlagTable flags(kUsage);
  flags.Group("Options");
  flags.Add("config_file", &o.config_file, "file to write").ValueName("FILE");
  flags
      .Add("mixed_precision", &o.mixed_precision,
           "precision to write; only for `lathe config default`")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  const std::vector<std::string> rest = flags.Parse(args);
  o.use_defaults = !rest.empty() && rest[0] == "default";
  if (rest.size() > (o.use_defaults ? 1u : 0u)) {
    throw InvalidArgument("unknown argument \"" + rest[o.use_defaults ? 1 : 0] + "\"",
                          "usage: lathe config [default] [options]");
  }
  if (flags.given("mixed_precision") && !o.use_defaults && !o.help) {
    throw InvalidArgument("--mixed_precision is only for `lathe config default`",
                          "leave it out: `lathe config` asks for it");
  }
  return o;
}

// Asks on standard output until standard input gives an answer that fits. An empty answer means
// `usual`. Throws if the input ends.
template <typename T>
T Ask(const std::string& question, const std::string& usual, const std::string& wanted,
      const std::function<std::optional<T>(const std::string&)>& parse) {
  for (;;) {
    std::cout << question << (usual.empty() ? "" : " [" + usual + "]") << ": " << std::flush;
    std::string answer;
    if (!std::getline(std::cin, answer)) {
      std::cout << '\n';
      throw Error(absl::StatusCode::kCancelled,
                  "standard input ended before the last question; nothing was written",
                  "`lathe config default` asks nothing");
    }
    const size_t begin = answer.find_first_not_of(" \t\r");
    const size_t end = answer.find_last_not_of(" \t\r");
    answer = begin == std::string::npos ? usual : answer.substr(begin, end - begin + 1);
    if (const auto value = parse(answer)) return *value;
    std::cout << "  Please answer with " << wanted << ".\n";
  }
}

int64_t AskNumber(const std::string& question, int64_t usual, int64_t low, int64_t high,
                  int64_t multiple_of = 1) {
  const std::string kind =
      multiple_of > 1 ? "a multiple of " + std::to_string(multiple_of) : "a whole number";
  const std::string wanted = kind + " from " + std::to_string(low) + " to " + std::to_string(high);
  return Ask<int64_t>(question, std::to_string(usual), wanted,
                      [&](const std::string& text) -> std::optional<int64_t> {
                        int64_t value = 0;
                        const char* end = text.data() + text.size();
                        const auto [stop, code] = std::from_chars(text.data(), end, value);
                        const bool fits = code == std::errc{} && stop == end && value >= low &&
                                          value <= high && value % multiple_of == 0;
                        return fits ? std::optional(value) : std::nullopt;
                      });
}

std::string AskChoice(const std::string& question, const std::string& usual,
                      const std::vector<std::string>& choices) {
  std::string wanted = "one of";
  for (const std::string& choice : choices) wanted += " " + choice;
  return Ask<std::string>(question, usual, wanted,
                          [&](const std::string& text) -> std::optional<std::string> {
                            const auto found = std::find(choices.begin(), choices.end(), text);
                            return found == choices.end() ? std::nullopt : std::optional(*found);
                          });
}

LaunchConfig DefaultAnswers() {
  LaunchConfig config;
  const int gpus = VisibleGpus();
  if (gpus > 1) config.distributed_type = "MULTI_GPU";
  config.num_processes = std::max(gpus, 1);
  return config;
}

void AskForMachines(LaunchConfig& config) {
  constexpr int64_t kUsualPort = 29500;
  config.num_machines = AskNumber("Number of machines", config.num_machines, 1, kMostProcesses);
  if (config.num_machines == 1) return;
  config.machine_rank =
      AskNumber("Number of this machine, counted from 0",
                std::min(config.machine_rank, config.num_machines - 1), 0, config.num_machines - 1);
  config.main_process_ip = Ask<std::string>(
      "Address of machine 0", config.main_process_ip.value_or(""), "a name or an IP address",
      [](const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); });
  config.main_process_port = AskNumber(
      "A free port on machine 0", config.main_process_port.value_or(kUsualPort), 1, kLargestPort);
}

std::string AskGpus(const std::string& usual) {
  return Ask<std::string>("GPUs of this machine: all, or their numbers, such as 0,2", usual,
                          "all, or numbers with commas between them", [](const std::string& text) {
                            return IsGpuList(text) ? std::optional(text) : std::nullopt;
                          });
}

// Drops this machine's place among others, which a job on one machine doesn't have.
void ForgetMachines(LaunchConfig& config) {
  config.machine_rank = 0;
  config.main_process_ip.reset();
  config.main_process_port.reset();
}

// Asks all questions. `before` holds the proposed answers.
LaunchConfig AskAll(const LaunchConfig& before) {
  LaunchConfig config = before;
  config.distributed_type = AskChoice("Processes: NO (one only), MULTI_CPU or MULTI_GPU (several)",
                                      before.distributed_type, {"NO", "MULTI_CPU", "MULTI_GPU"});
  if (config.distributed_type == "NO") {
    config.num_machines = config.num_processes.emplace(1);
    ForgetMachines(config);
  } else {
    AskForMachines(config);
    if (config.num_machines == 1) ForgetMachines(config);
    const int64_t each = config.distributed_type == "MULTI_GPU" ? std::max(VisibleGpus(), 1) : 2;
    const int64_t usual = before.distributed_type == config.distributed_type &&
                                  before.num_machines == config.num_machines
                              ? before.num_processes.value_or(each * config.num_machines)
                              : each * config.num_machines;
    config.num_processes = AskNumber("Number of processes, on all machines together", usual,
                                     config.num_machines, kMostProcesses, config.num_machines);
  }
  if (config.distributed_type == "MULTI_GPU") config.gpu_ids = AskGpus(before.gpu_ids);
  config.use_cpu = config.distributed_type == "MULTI_CPU";
  if (config.distributed_type == "NO" && VisibleGpus() > 0) {
    config.use_cpu = AskChoice("Compute on the CPU although there is a GPU: yes or no",
                               before.use_cpu ? "yes" : "no", {"yes", "no"}) == "yes";
  }
  const std::string precision = before.mixed_precision.value_or("no");
  config.mixed_precision = config.use_cpu
                               ? AskChoice("Mixed precision: no or bf16",
                                           precision == "fp16" ? "no" : precision, {"no", "bf16"})
                               : AskChoice("Mixed precision: no, bf16, or fp16 on a GPU", precision,
                                           {"no", "bf16", "fp16"});
  return config;
}

// Reads the file that is to be replaced. Throws unless it is a configuration that Lathe can read.
LaunchConfig ReadPrevious(const std::string& path) {
  try {
    return ReadLaunchConfig(path);
  } catch (const Error& e) {
    throw Error(absl::StatusCode::kFailedPrecondition,
                e.message() + "; Lathe does not replace a file that it can't read",
                "move it away, or name another file with --config_file");
  }
}

void Save(const std::string& path, const LaunchConfig& config) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code code;
  if (!folder.empty()) fs::create_directories(folder, code);
  if (code) throw FileError(folder, code.value());
  WriteFileAtomically(path, FormatLaunchConfig(config));
  std::cout << "Saved " << path << '\n';
}

}  // namespace

int RunConfig(const std::vector<std::string>& args) {
  ConfigFlags flags;
  if (const auto code = ParseOrEnd(&flags, ParseConfigFlags, args)) return *code;
  std::error_code code;
  const bool there = fs::exists(fs::symlink_status(flags.config_file, code));
  if (flags.use_defaults) {
    if (there) {
      throw Error(absl::StatusCode::kAlreadyExists, flags.config_file + " exists already",
                  "remove it, or change it with `lathe config`");
    }
    LaunchConfig config = DefaultAnswers();
    config.mixed_precision = flags.mixed_precision;
    Save(flags.config_file, config);
    return 0;
  }
  const LaunchConfig before = there ? ReadPrevious(flags.config_file) : DefaultAnswers();
  Save(flags.config_file, AskAll(before));
  return 0;
}

}  // namespace lathe
