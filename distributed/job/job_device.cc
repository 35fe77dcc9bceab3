// The choice of a device for each rank of a job, and the connection between the devices.
#include <absl/status/status.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/job/job.h"
#include "lathe/distributed/rendezvous/machine.h"
#include "lathe/distributed/rendezvous/network.h"
#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {
namespace {

constexpr char kNoCuda[] = "this program was built without CUDA";

// Runs `body` on all ranks. Throws on all of them, with the same words, if it throws on any.
void RunOnAll(ProcessGroup& group, const std::string& hint, const std::function<void()>& body) {
  std::string mine;  // what went wrong on this rank; "" if nothing did
  try {
    body();
  } catch (const Error& e) {
    mine = e.message();
  }
  const std::vector<std::string> problems = GatherStrings(group, mine);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    throw Error(absl::StatusCode::kUnavailable,
                "[nccl] " + RankName(static_cast<int>(rank)) + ": " + problems[rank], hint);
  }
}

// Connects the GPUs by a group beside the job's own. The job's group stays as it is if something
// goes wrong on a device.
std::shared_ptr<NcclGroup> JoinDevices(const Job& job, std::chrono::milliseconds timeout) {
  const ProcessEnvironment& env = job.environment;
  const std::string name = "lathe devices 1 " + env.job;
  std::shared_ptr<StoreServer> server;
  int port = 0;  // rank 0's
  RunOnAll(*job.group, "let rank 0 listen at MASTER_ADDR, or compute on the CPU (device cpu)", [&] {
    if (env.rank != 0) return;
    server = AtFreePort(ReadPortRange(), [&](int free) {
      return std::make_shared<StoreServer>(env.master_addr, free, name);
    });
    port = server->port();
  });
  job.group->Broadcast(std::as_writable_bytes(std::span(&port, 1)), 0);
  std::shared_ptr<Store> store;
  // A rank that can't reach the store tells the others, so that none waits for it.
  RunOnAll(*job.group,
           "let each rank reach every port of the machine at MASTER_ADDR, or compute on the CPU "
           "(device cpu)",
           [&] {
             store =
                 std::make_shared<Store>(env.master_addr, port, name, timeout, RankName(env.rank));
           });
  std::shared_ptr<NcclGroup> group = RequireNccl().make(
      env.rank, env.world_size, env.local_rank, std::move(server), std::move(store), timeout);
  group->WatchPeersWith(job.group);
  return group;
}

// Returns the GPUs of all ranks, in the order of ranks.
std::vector<RankDevice> GatherDevices(const Job& job) {
  RankDevice own = {.problem = kNoCuda,
                    .hint = "build it where CUDA is installed, or compute on the CPU (device cpu)"};
  if (FindDeviceBackend() != nullptr) own = DescribeRankDevice(job.environment.local_rank);
  std::vector<RankDevice> all;
  for (const std::string& text : GatherStrings(*job.group, Serialize(own))) {
    all.push_back(ParseRankDevice(text));
  }
  return all;
}

JobDevice ChooseAlone(const std::string& wish) {
  const Device device = ChooseDevice(wish);
  if (wish != "auto" || !device.is_cpu() || VisibleGpus() == 0) return {.device = device};
  DeviceBackend* backend = FindDeviceBackend();
  return {.note = "this process computes on the CPU: " +
                  (backend == nullptr ? kNoCuda : backend->UnavailableReason())};
}

}  // namespace

JobDevice ChooseJobDevice(const Job& job, const std::string& wish,
                          std::chrono::milliseconds timeout) {
  if (job.group->size() == 1) return ChooseAlone(wish);
  CheckSame(*job.group, "preflight", {{"device", wish}},
            "run the same program with the same options on all ranks");
  if (wish == "cpu") return {};
  if (wish.starts_with("cuda:")) {
    throw InvalidArgument(
        "[accelerator] device " + wish + " is one GPU but there are " +
            std::to_string(job.group->size()) + " processes",
        "use device cuda: each process then takes the GPU with the number of its local rank");
  }
  if (wish != "auto" && wish != "cuda") ChooseDevice(wish);  // throws: the device is unknown

  const std::vector<RankDevice> devices = GatherDevices(job);
  try {
    CheckRankDevices(devices);
  } catch (const Error& e) {
    if (wish == "cuda") throw Error(e.code(), "[accelerator] " + e.message(), e.hint());
    DeviceBackend* backend = FindDeviceBackend();
    const bool any =
        VisibleGpus() > 0 || (backend != nullptr && backend->Count() > 0) ||
        std::ranges::any_of(devices, [](const RankDevice& device) { return device.visible > 0; });
    return {.note = any ? "all processes compute on the CPU: " + e.message() : ""};
  }
  // Weak, so that the connections end with their last user: NCCL's must end before the process.
  static std::weak_ptr<NcclGroup> joined;
  static std::weak_ptr<ProcessGroup> joined_by;  // a forked process is another rank
  std::shared_ptr<NcclGroup> group = joined_by.lock() == job.group ? joined.lock() : nullptr;
  if (group == nullptr) group = JoinDevices(job, timeout);
  joined = group;
  joined_by = job.group;
  return {.device = {DeviceType::kCUDA, group->device()}, .group = std::move(group)};
}

}  // namespace lathe
