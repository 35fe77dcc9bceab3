#include "lathe/distributed/rendezvous/open_files.h"

#include <absl/status/status.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "lathe/core/base/error.h"

namespace lathe {

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
