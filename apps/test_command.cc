#include "lathe/apps/test_command.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>

#include "lathe/apps/flags.h"
#include "lathe/apps/launch_flags.h"
#include "lathe/apps/report_error.h"
#include "lathe/apps/self_test.h"
#include "lathe/core/error.h"
#include "lathe/core/file.h"
#include "lathe/distributed/launch.h"
#include "lathe/distributed/machine.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kUsage[] =
    "Trains a tiny model for some seconds, in one process and then in several as `lathe\n"
    "launch` starts them, and compares the two: losses, weights, evaluation, collectives.\n"
    "\n"
    "Usage:\n"
    "  lathe test [options]\n"
    "\n"
    "What no option says is taken from the file that `lathe config` writes, if there is\n"
    "one. Without either, or where that says one, there are 2 processes.\n";

// What comes before the folder for reports where this program is a process of the job.
constexpr char kAsRank[] = "as-rank";

// The flags of the job that is tested, and of the one process that it is compared with.
struct TestedJobs {
  LaunchFlags several, one;
};

TestedJobs ChooseJobs(const LaunchFlags& flags) {
  const bool configured = FindLaunchConfig(flags).has_value();
  const LaunchConfig config = FindLaunchConfig(flags).value_or(LaunchConfig());
  TestedJobs jobs = {flags, flags};
  const int64_t machines = flags.num_machines.value_or(1);
  // One process would be compared with itself.
  if (!flags.num_processes && config.num_processes.value_or(0) < 2) {
    jobs.several.num_processes = 2 * machines;
  }
  // A GPU serves one process.
  if (!flags.cpu && !configured && VisibleGpus() < *jobs.several.num_processes / machines) {
    jobs.several.cpu = true;
  }
  jobs.one = jobs.several;
  jobs.one.num_processes = jobs.one.num_machines = 1;
  jobs.one.machine_rank = jobs.one.main_process_port = 0;
  jobs.one.main_process_ip = "";
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
  // A new folder in it.
  std::string Make(const std::string& name) const {
    fs::create_directory(path_ / name);
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

// Starts ranks of this program that leave their reports in `folder`.
int LaunchRanks(const LaunchFlags& flags, const std::string& folder) {
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  return LaunchProgram({program, "test", kAsRank, folder},
                       MakeLaunchOptions(flags, FindLaunchConfig(flags)));
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

int RunRank(const std::string& folder) {
  const SelfTestReport report = RunSelfTest();
  WriteSelfTestReport(report, folder + "/rank_" + std::to_string(report.rank) + ".json");
  return 0;
}

// Of a signal the launcher has told, or the user knows.
int EndWith(int exit_code, const std::string& what) {
  if (exit_code > 128) return exit_code;
  throw Error(absl::StatusCode::kInternal,
              what + " ended with exit code " + std::to_string(exit_code));
}

int TestSetUp(const LaunchFlags& flags) {
  // The runs are short, and other programs may want the cores for which threads would wait.
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  const TestedJobs jobs = ChooseJobs(flags);
  MakeLaunchOptions(jobs.several, FindLaunchConfig(flags));  // what doesn't go together, at once
  const TemporaryFolder temporary;
  const std::string one_folder = temporary.Make("one"), several_folder = temporary.Make("several");
  int exit_code = LaunchRanks(jobs.one, one_folder);
  if (exit_code != 0) return EndWith(exit_code, "the training in one process");
  const SelfTestReport one = ReadReports(one_folder).front();
  exit_code = LaunchRanks(jobs.several, several_folder);
  if (exit_code != 0) return EndWith(exit_code, "the training in several processes");
  PrintSelfTest(std::cout, one, ReadReports(several_folder));
  return 0;
}

}  // namespace

int RunTest(const std::vector<std::string>& args) {
  if (args.size() == 2 && args[0] == kAsRank) return RunRank(args[1]);
  LaunchFlags flags;
  FlagTable table(kUsage);
  AddLaunchFlags(table, flags);
  const std::string help_text = table.Help();  // before parsing: it shows the defaults
  const int usage = ReportErrors(kUsageExitCode, [&] {
    const std::vector<std::string> rest = table.Parse(args);
    if (!rest.empty()) throw InvalidArgument("unknown argument \"" + rest[0] + "\"");
    if (flags.num_processes == 1) {
      throw InvalidArgument("--num_processes is 1, and one process would be compared with itself",
                            "give at least 2, or leave it out");
    }
    return 0;
  });
  if (usage != 0) return usage;
  if (flags.help) {
    std::cout << help_text;
    return 0;
  }
  return TestSetUp(flags);
}

}  // namespace lathe
