#include "lathe/distributed/rendezvous/machine.h"

#include <absl/status/status.h>
#include <absl/strings/str_split.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

namespace fs = std::filesystem;

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

int UsableCores() {
  std::array<cpu_set_t, 16> cores{};  // 1024 cores each
  if (sched_getaffinity(0, sizeof cores, cores.data()) != 0) return 1;
  return std::max(CPU_COUNT_S(sizeof cores, cores.data()), 1);
}

int InstalledGpus(const std::string& driver_folder) {
  std::error_code code;
  int count = 0;
  for (fs::directory_iterator gpu(driver_folder, code), end; !code && gpu != end;
       gpu.increment(code)) {
    ++count;
  }
  return count;
}

int VisibleGpus(const std::string& driver_folder) {
  const int count = InstalledGpus(driver_folder);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return count;
  // A list such as "2,0". CUDA shows a program its devices up to the first that can't be one.
  const std::vector<std::string> ids = absl::StrSplit(visible, ',');
  const auto end = std::ranges::find_if(
      ids, [](const std::string& id) { return id.empty() || id.starts_with('-'); });
  return std::min(count, static_cast<int>(end - ids.begin()));
}

int64_t RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT64_MAX;
  const rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

void RequireOpenFiles(int rank, int world_size) {
  constexpr int64_t kOwn = 128;  // the program's own files, libraries and devices
  const int64_t needed = (rank == 0 ? 3 : 1) * int64_t{world_size} + kOwn;
  const int64_t limit = RaiseOpenFileLimit();
  if (limit >= needed) return;
  throw Error(absl::StatusCode::kFailedPrecondition,
              "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " may open " +
                  std::to_string(limit) + " files but needs about " + std::to_string(needed),
              "raise the hard limit: `ulimit -Hn " + std::to_string(needed) +
                  "` as root, LimitNOFILE in systemd, or nofile in /etc/security/limits.conf");
}

}  // namespace lathe
