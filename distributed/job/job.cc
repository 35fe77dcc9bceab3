#include "lathe/distributed/job/job.h"

#include <absl/strings/escaping.h>
#include <link.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/philox.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/distributed/rendezvous/machine.h"
#include "lathe/distributed/rendezvous/rank_end.h"

namespace lathe {
namespace {

void FindRanksOfMachine(Job& job) {
  const ProcessEnvironment& env = job.environment;
  const RankPlacement mine = {HashName(HostName()), env.local_rank, env.local_world_size};
  const std::vector<RankPlacement> all = GatherValues(*job.group, mine);
  for (const std::vector<int>& ranks : RanksByMachine(all)) {
    if (std::ranges::count(ranks, job.group->rank()) == 0) continue;
    const auto main = std::ranges::find_if(
        ranks, [&](int rank) { return all[static_cast<size_t>(rank)].local_rank == 0; });
    Check(main != ranks.end(), "accelerator", "no process on ", HostName(), " has LOCAL_RANK 0");
    job.local_main = *main;
    SetLocalRanks(ranks);
  }
}

// Divides the cores among ranks that may use the same ones, unless OMP_NUM_THREADS is set.
void ShareThreads(ProcessGroup& group) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return;
  const std::string mine =
      HostName() + '/' + std::string(reinterpret_cast<const char*>(&cores), sizeof cores);
  const std::vector<std::string> all = GatherStrings(group, mine);
  const auto sharing = static_cast<int>(std::count(all.begin(), all.end(), mine));
  omp_set_num_threads(std::max(1, CPU_COUNT(&cores) / sharing));
}

// The job that the process `made_by` has joined: this one or, after a fork, its parent.
struct Joined {
  std::unique_ptr<Job> job;
  pid_t made_by = 0;
};

Joined& ThisProcess() {
  static Joined joined;
  return joined;
}

}  // namespace

const Job& JoinJobOnce(const std::optional<ProcessEnvironment>& environment,
                       std::chrono::milliseconds timeout,
                       std::chrono::milliseconds heartbeat_timeout) {
  auto& [job, made_by] = ThisProcess();
  // A forked process is another rank. It leaks the job, as it must leave its parent's connections.
  if (job && made_by != getpid()) static_cast<void>(job.release());
  if (!job) {
    made_by = getpid();
    auto fresh = std::make_unique<Job>();
    fresh->environment = environment ? *environment : ReadProcessEnvironment();
    fresh->group = JoinProcessGroup(fresh->environment,
                                    {.timeout = timeout, .heartbeat_timeout = heartbeat_timeout});
    if (fresh->group->size() > 1) {
      FindRanksOfMachine(*fresh);
      ShareThreads(*fresh->group);
    }
    job = std::move(fresh);
    at_rank_end = [] {
      if (JoinedGroup() != nullptr) ThisProcess().job.reset();
    };
  }
  return *job;
}

std::shared_ptr<ProcessGroup> JoinedGroup() {
  const auto& [job, made_by] = ThisProcess();
  return job && made_by == getpid() ? job->group : nullptr;
}

std::string BuildId() {
  std::string id;
  const auto read = [](dl_phdr_info* info, size_t, void* out) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = info->dlpi_phdr[i];
      if (part.p_type != PT_NOTE) continue;
      const char* at = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
      const char* end = at + part.p_memsz;
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
        const char* value = at + sizeof note + (note.n_namesz + 3) / 4 * 4;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4) {
          static_cast<std::string*>(out)->assign(value, note.n_descsz);
        }
        at = value + (note.n_descsz + 3) / 4 * 4;
      }
    }
    return 1;  // stop after the first object, which is the program itself
  };
  dl_iterate_phdr(read, &id);
  return absl::BytesToHexString(id);
}

}  // namespace lathe
