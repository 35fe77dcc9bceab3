#include "lathe/apps/lathe/self_test/test_command.h"

#include <absl/status/status.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/printer.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/launch/launch_flags.h"
#include "lathe/apps/lathe/self_test/measure_bandwidth.h"
#include "lathe/apps/lathe/self_test/self_test.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/device_backend.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/job/error_report.h"
#include "lathe/distributed/launch/launch.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kUsage[] =
    "Checks that training in several processes or on GPUs works on this machine. It\n"
    "trains a tiny model for some seconds in one process on the CPU. Then it trains\n"
    "the model in the processes that `lathe launch` would start here. It compares\n"
    "losses, weights, evaluation and collectives.\n"
    "\n"
    "Usage:\n"
    "  lathe test [options]\n"
    "  lathe test --bandwidth [options]\n"
    "\n"
    "With --bandwidth it measures the collectives between the processes instead.\n"
    "\n"
    "If an option is not given, its value comes from the file that `lathe config`\n"
    "writes. Without that file, one process trains on each GPU. Without GPUs, 2\n"
    "processes train on the CPU.\n";

// If this program runs as a rank of a job, its first argument is one of these, and the folder for
// reports follows. Ranks of the reference job print no notes, since the tested job prints them.
constexpr char kAsRank[] = "as-rank", kAsReference[] = "as-reference";

// The number of GPUs that this program can use.
int UsableGpus() {
  DeviceBackend* backend = FindDeviceBackend();
  return backend == nullptr ? 0 : backend->Count();
}

// The job that is tested, and the job of one process that it is compared with.
struct TestedJobs {
  LaunchOptions tested, reference;
};

TestedJobs ChooseJobs(LaunchFlags flags) {
  const std::optional<LaunchConfig> file = FindLaunchConfig(flags);
  const LaunchConfig config = file.value_or(LaunchConfig());
  const int gpus = UsableGpus();
  const int64_t machines = flags.num_machines.value_or(config.num_machines);
  const std::optional<int64_t> said =
      flags.num_processes ? flags.num_processes : config.num_processes;
  // A GPU serves one process. So more processes than GPUs use the CPU, unless a flag or the
  // configuration file chooses. All machines are taken to have the same number of GPUs.
  if (!flags.cpu && !file && !flags.AsksForGpus() &&
      (gpus == 0 || said.value_or(0) > gpus * machines))
    flags.cpu = true;
  const bool on_cpu = IsOnCpu(flags, config) || gpus == 0;
  if (on_cpu && said.value_or(1) == 1) {
    if (flags.num_processes) {
      throw UsageError(
          "--num_processes is 1, but one process on the CPU would be compared with "
          "itself",
          "pass --num_processes 2 or more, or leave it out");
    }
    flags.num_processes = 2 * machines;
  }
  const std::string precision = PrecisionOf(flags, config);
  TestedJobs jobs;
  jobs.tested = MakeLaunchOptions(flags, file, gpus, std::max(gpus, InstalledGpus()));
  flags.num_processes = flags.num_machines = 1;
  flags.machine_rank = flags.main_process_port = 0;
  flags.main_process_ip = "";
  flags.cpu = true;
  flags.multi_gpu = false;
  flags.gpu_ids = "";
  if (precision == "fp16") flags.mixed_precision = "no";  // the CPU has no float16
  jobs.reference = MakeLaunchOptions(flags, file, 0);
  return jobs;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "lathe-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw FileError(name, errno);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code code;
    fs::remove_all(path_, code);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  // Makes a folder inside the temporary one, and returns its path.
  std::string Make(const std::string& name) const {
    fs::create_directory(path_ / name);
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

// Starts ranks of this program with these arguments after "test".
int LaunchRanks(const LaunchOptions& options, std::vector<std::string> args) {
  args.insert(args.begin(), {fs::read_symlink("/proc/self/exe").string(), "test"});
  return LaunchProgram(args, options);
}

std::vector<SelfTestReport> ReadReports(const std::string& folder) {
  std::vector<SelfTestReport> reports;
  for (const auto& file : fs::directory_iterator(folder)) {
    reports.push_back(ReadSelfTestReport(file.path().string()));
  }
  std::sort(reports.begin(), reports.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (reports.empty()) {
    throw Error(absl::StatusCode::kInternal, "the training ended without a report");
  }
  return reports;
}

int RunRank(const std::string& role, const std::string& folder) {
  const SelfTestReport report = RunSelfTest(/*notes=*/role == kAsRank);
  WriteSelfTestReport(report, folder + "/rank_" + std::to_string(report.rank) + ".json");
  return 0;
}

// Returns the exit code of a job that a signal ended: the launcher has reported it, or the user
// knows. Throws for other codes.
int ExitCodeAfter(int exit_code, const std::string& what) {
  if (exit_code > 128) return exit_code;
  throw Error(absl::StatusCode::kInternal,
              what + " ended with exit code " + std::to_string(exit_code));
}

int TestLaunching(const LaunchFlags& flags) {
  // Waiting threads should not spin: the runs are short, and other programs may want the cores.
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  const TestedJobs jobs = ChooseJobs(flags);
  const TemporaryFolder temporary;
  const std::string one_folder = temporary.Make("one"), tested_folder = temporary.Make("tested");
  // The ranks leave their reports in the folders.
  int exit_code = LaunchRanks(jobs.reference, {kAsReference, one_folder});
  if (exit_code != 0) return ExitCodeAfter(exit_code, "the training in one process");
  const SelfTestReport one = ReadReports(one_folder).front();
  exit_code = LaunchRanks(jobs.tested, {kAsRank, tested_folder});
  if (exit_code != 0) {
    return ExitCodeAfter(exit_code, jobs.tested.num_processes > 1
                                        ? "the training in several processes"
                                        : "the training on the GPU");
  }
  PrintSelfTest(std::cout, one, ReadReports(tested_folder));
  return 0;
}

struct BandwidthFlags {
  bool bandwidth = false;
  int64_t max_bytes = kMostBytes;
};

int RunBandwidthRank(int64_t max_bytes) try {
  Accelerator accelerator({.device = "cpu"});
  Printer printer(accelerator.is_main_process());
  MeasureBandwidth(accelerator.group(), accelerator.local_process_index(), max_bytes,
                   printer.out());
  accelerator.EndTraining();
  return 0;
} catch (const Error& e) {
  if (ShouldReport(e)) throw;
  return kErrorExitCode;
}

int TestBandwidth(const FlagTable& table, LaunchFlags flags, int64_t max_bytes) {
  // Each process of a job that another launcher has started is one of the ranks.
  const ProcessEnvironment environment = ReadProcessEnvironment();
  if (environment.world_size > 1) {
    for (const auto& [name, value] : table.GivenValues()) {
      if (name == "bandwidth" || name == "max_bytes") continue;
      if (environment.local_rank != 0) return kUsageExitCode;  // one of them says it
      throw UsageError("--" + name + " has no effect, since this process was started by a launcher",
                       "give it to the launcher");
    }
    return RunBandwidthRank(max_bytes);
  }
  if (flags.num_processes == 1) {
    throw UsageError("--num_processes is 1, but bandwidth is measured between processes",
                     "pass --num_processes 2 or more, or leave it out");
  }
  flags.cpu = true;
  return LaunchRanks(ChooseJobs(flags).tested,
                     {"--bandwidth", "--max_bytes", std::to_string(max_bytes)});
}

}  // namespace

int RunTest(const std::vector<std::string>& args) {
  if (args.size() == 2 && (args[0] == kAsRank || args[0] == kAsReference))
    return RunRank(args[0], args[1]);
  LaunchFlags flags;
  FlagTable table(kUsage);
  BandwidthFlags own;
  table.Group("Bandwidth");
  table.Add("bandwidth", &own.bandwidth,
            "measure latency and bandwidth between the processes, on the CPU; under lathe launch "
            "or mpirun between those that it has started");
  table.Add("max_bytes", &own.max_bytes, "with --bandwidth: the largest size that is measured")
      .Min(kLeastBytes)
      .Max(int64_t{64} << 30);
  AddLaunchFlags(table, flags);
  const std::string help_text = table.Help();  // before parsing, because it shows the defaults
  const int usage = ReportErrors(kUsageExitCode, [&] {
    const std::vector<std::string> rest = table.Parse(args);
    if (!rest.empty()) throw InvalidArgument("unknown argument \"" + rest[0] + "\"");
    if (table.given("max_bytes") && !own.bandwidth)
      throw InvalidArgument("--max_bytes has no effect without --bandwidth");
    return 0;
  });
  if (usage != 0) return usage;
  if (flags.help) {
    std::cout << help_text;
    return 0;
  }
  TakeMachineVariables(flags);
  return own.bandwidth ? TestBandwidth(table, flags, own.max_bytes) : TestLaunching(flags);
}

}  // namespace lathe
